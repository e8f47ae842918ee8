"""Which tokens the guides of a step's sequences allow, computed in threads beside the forward pass.

A mask takes hundredths of a millisecond. Of an ambiguous grammar it may take a large part of a second, and it cannot be broken off. So a
step waits for its masks for ``WAIT_S`` and draws without those that are late::

    quick lane  | A | B | C, which takes long ............  its thread is left to it, with a low priority; a new one makes D's
    step        | forward pass | A, B, D draw |  A, B, D draw |  A, B, C, D draw
    slow lane                                             | C's next | E's next | C's next      one thread for all of them

A row that was late is kept, its sequence sits out the steps until its mask is there, and draws from it then. From its first
slow mask on nobody waits for it, and nothing is drafted for it. What it draws is the same, only later. Slow masks of
more than ``TOTAL_S`` of processor time, or one whose thread stands still, end the sequence; a busy machine does not.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from quintet.backends.native.draft.thinking_budget import ThinkingBudget
from quintet.backends.native.schedule.plan import Segment
from quintet.backends.native.schedule.sequence import Sequence, State
from quintet.backends.native.worker.lane import Lane, lower
from quintet.guides.compiled import Guides
from quintet.guides.matcher import U32, Matcher

WAIT_S = 0.05
"""What a step waits for masks after its forward pass: with that, less than a gap that a reader sees."""

SLOW_S = 0.02
"""Processor time of a mask that counts."""

TOTAL_S = 10.0
"""Most processor time of a sequence's slow masks."""

HANG_S = 20.0
"""A mask whose thread has used no processor time for so long will not come."""

Follower = Matcher | ThinkingBudget


class MaskError(RuntimeError):
    """The library broke while it made a mask."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A late mask is there: what the worker tells itself, from the thread that made it."""

    seq: Sequence


@dataclass(slots=True, eq=False)
class _Job:
    """The masks of one sequence's rows.

    Args:
        draft: what the rows after the first one follow.
        bits: uint32 [rows, words] of the step that it was begun in; ones where it is not filled.
        filled: rows that the guide allows something at; 0 = it cannot go on.
        follower: of the sequence, at the first row.
        thread: the system's number of the one that it runs in; 0 = it was not begun.
        thread_s_at_begin: processor time of that thread when it was begun.
        thread_s_seen, seen_at: the same when it was looked at last, and when that was.
        late: somebody wants to be told when it is done.
    """

    seq: Sequence
    draft: list[int]
    bits: U32
    follower: Follower | None
    filled: int = 0
    cpu_s: float = 0.0
    thread: int = 0
    thread_s_at_begin: float = 0.0
    thread_s_seen: float = 0.0
    seen_at: float = 0.0
    late: bool = False
    done: bool = False
    error: MaskError | None = None


@dataclass(frozen=True, slots=True)
class Masked:
    """What may be drawn.

    Args:
        bits: uint32 [R, ceil(V/32)]; all ones where there is no guide, all zeros where one cannot go on.
        ends: rows after which a sequence cannot go on as drafted.
        late: segments whose masks are not there, and that draw nothing in this step.
    """

    bits: U32
    ends: list[int]
    late: frozenset[Segment] = frozenset()

    def of(self, rows: list[int]) -> Masked:
        """Of some rows only, whole sequences' in order."""
        return Masked(self.bits[rows], [rows.index(end) for end in self.ends])


class Masks:
    """Makes the masks of a step; used in the worker's thread.

    Args:
        vocab: width of the logits.
        wake: called in another thread with a sequence that sat out and can draw now: tell the worker.
    """

    def __init__(self, guides: Guides, vocab: int, wake: Callable[[Sequence], None] = lambda _: None) -> None:
        self._guides = guides
        self._words = -(-vocab // 32)
        self._wake = wake
        self._quick, self._slow = _MaskLane("quintet-masks", self._make), _MaskLane("quintet-slow-masks", self._make, low=True)
        self._late: dict[Sequence, _Job] = {}
        self.seconds = 0.0
        """Processor time of all masks that were drawn with."""

    def begin(self, drawing: Items[Segment]) -> Callable[[], Masked] | None:
        """Start on the masks of the sequences that will draw, which must not change meanwhile; ``None`` if none has a guide.

        Returns:
            Waits for them, and must be called. Raises ``MaskError``.
        """
        if not any(segment.seq.guided for segment in drawing):
            return None
        # One that is being made holds up those behind it, whoever still waits for it: see ``give_up``.
        self._late = {seq: job for seq, job in self._late.items() if seq.state is not State.DONE or (job.thread and not job.done)}
        masked = Masked(np.full((sum(segment.draws for segment in drawing), self._words), 0xFFFFFFFF, np.uint32), [])
        jobs: dict[Segment, _Job] = {}
        first = 0
        for segment in drawing:
            seq, rows = segment.seq, masked.bits[first : first + segment.draws]
            if seq.guided:
                jobs[segment] = self._late.get(seq) or _Job(seq, segment.draft, rows, seq.matcher, late=seq.slow)
            first += segment.draws
        new = [job for job in jobs.values() if job.seq not in self._late]
        self._quick.put([job for job in new if not job.seq.slow])
        self._slow.put([job for job in new if job.seq.slow])
        return lambda: self._finish(drawing, jobs, masked)

    def give_up(self) -> None:
        """Sequences whose masks do not come cannot go on; those behind them can."""
        now = time.monotonic()
        for job in self._late.values():
            if not job.done and job.thread and now - job.seen_at > HANG_S:
                used = used_by(job.thread)
                if job.thread_s_seen < used < job.thread_s_at_begin + TOTAL_S:  # it gets on, if slowly
                    job.thread_s_seen, job.seen_at = used, now
                    continue
                job.filled, job.done = 0, True
                self._slow.leave(job)
                self._wake(job.seq)

    def _finish(self, drawing: Items[Segment], jobs: dict[Segment, _Job], masked: Masked) -> Masked:
        self._quick.wait(WAIT_S)
        for job in jobs.values():
            job.late = True
        late = {segment: job for segment, job in jobs.items() if not job.done}  # one that comes after this will wake its sequence
        self._late |= {job.seq: job for job in late.values()}
        for job in self._late.values():
            if job.thread and not (job.done or job.seq.slow):
                job.seq.slow = True
                self._quick.leave(job)
        first = 0
        for segment in drawing:
            if segment in jobs and segment not in late:
                self._take(jobs[segment], segment, masked, first)
            first += segment.draws
        return Masked(masked.bits, masked.ends, frozenset(late)) if late else masked

    def _take(self, job: _Job, segment: Segment, masked: Masked, first: int) -> None:
        """Put a sequence's masks where its rows are, and its follower where it belongs."""
        seq = job.seq
        self._late.pop(seq, None)
        if job.error is not None:
            raise job.error
        seq.matcher = job.follower
        self.seconds += job.cpu_s
        seq.mask_s += job.cpu_s if job.cpu_s > SLOW_S else 0.0
        seq.slow = seq.mask_s > 0  # and not where only the machine was busy
        filled = job.filled if job.draft == segment.draft else min(job.filled, 1)
        if job.bits.base is not masked.bits:  # it was late
            masked.bits[first : first + filled] = job.bits[:filled]
        if not filled:
            masked.bits[first] = 0
        elif filled < segment.draws:
            masked.ends.append(first + filled - 1)

    # -- in the lanes' threads -------------------------------------------------------------------------------------------------

    def _make(self, job: _Job) -> None:
        try:
            filled = self._filled(job)
        except BaseException as fault:  # a panic of the library is no ``Exception``
            job.error = MaskError(f"a mask could not be made: {fault!r}")
            filled = 0
        if not job.done:  # it was not given up meanwhile
            job.filled, job.done = filled, True
            if job.late:
                self._wake(job.seq)

    def _filled(self, job: _Job) -> int:
        seq = job.seq
        if seq.mask_s > TOTAL_S or seq.state is State.DONE:
            return 0
        with self._guides.growing(seq.grammar) as room:
            if not room:
                return 0
            job.follower = job.follower or self._follower(seq)
            begin = time.thread_time()
            filled = self._rows(job, job.follower)
            if job.follower.error:  # of what all of the guide share, it may be, and another's: again from the beginning
                self._guides.forget(seq.grammar)
                job.follower = self._follower(seq)
                filled = self._rows(job, job.follower)
            job.cpu_s = time.thread_time() - begin
            return filled

    def _rows(self, job: _Job, follower: Follower) -> int:
        """Masks of the next token and of those after it, as far as the draft keeps to the guide; returns how many."""
        seq, masks = job.seq, job.bits
        if not (all(follower.consume(token) for token in seq.generated[follower.consumed :]) and follower.fill(masks[0])):
            return 0
        ahead = follower.copy() if job.draft else follower  # what a wrong draft does to it, even to exceed a limit, is forgotten
        for row, token in enumerate(job.draft):
            allowed = masks[row, token // 32] >> np.uint32(token % 32) & 1
            if not (allowed and ahead.consume(token) and ahead.fill(masks[row + 1])):
                return row + 1
        return len(job.draft) + 1

    def _follower(self, seq: Sequence) -> Follower:
        matcher = self._guides.matcher(seq.grammar) if seq.grammar else None
        if seq.thinking is not None:
            compiler = self._guides.compiler
            return ThinkingBudget(seq.thinking, compiler.pieces, compiler.eos_ids, matcher)
        assert matcher is not None, "asked of a guided sequence only"
        return matcher


class _MaskLane:
    """A thread that does jobs in turn, and can be left to one of them.

    Args:
        low: of low priority.
    """

    def __init__(self, name: str, make: Callable[[_Job], None], *, low: bool = False) -> None:
        self._make, self._low = make, low
        self._jobs: deque[_Job] = deque()
        self._lane = Lane(name)
        self._last: Future[None] | None = None

    def put(self, jobs: list[_Job]) -> None:
        if jobs:
            self._jobs.extend(jobs)
            self._last = self._lane.submit(partial(self._run, self._jobs))

    def wait(self, seconds: float) -> None:
        """Until all jobs are done, or for so long."""
        if self._last is not None:
            wait((self._last,), seconds)

    def leave(self, job: _Job) -> None:
        """The job keeps its thread, which ends with it; a new one does the others."""
        self._lane.leave(job.thread)
        rest = deque[_Job]()
        with contextlib.suppress(IndexError):
            while True:
                rest.append(self._jobs.popleft())  # each is done by whoever took it
        self._jobs, self._last = deque(), None
        self.put(list(rest))

    def _run(self, jobs: deque[_Job]) -> None:
        if self._low:
            lower(threading.get_native_id())
        with contextlib.suppress(IndexError):
            while True:
                job = jobs.popleft()
                job.thread_s_at_begin = job.thread_s_seen = time.thread_time()
                job.seen_at = time.monotonic()
                job.thread = threading.get_native_id()  # last: from here on it is looked at
                self._make(job)


def used_by(thread: int) -> float:
    """Processor time of a thread of this process so far, in seconds, to a hundredth; 0 if it is gone, or the system does not tell."""
    try:
        fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
