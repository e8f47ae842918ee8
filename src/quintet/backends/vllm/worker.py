"""The child's own loop, around vLLM's: tenants' turns before it, events after it. Talks only in ``messages``.

::

    Submit --> guides compiled by the choosers --> tenants' turns --> as many as vLLM runs, and a few ahead --> vLLM
                                                                                         its outputs --> Stepped, once a step
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from quintet.backends.base import Counts, Pages
from quintet.backends.native.schedule.emit import FAILED, NUMERICAL
from quintet.backends.native.schedule.waiting import FairQueue
from quintet.backends.native.wire.messages import (
    Abort,
    Died,
    Events,
    Expand,
    FromWorker,
    Ping,
    Pixels,
    Shed,
    Started,
    Stepped,
    Stop,
    Submit,
    ToWorker,
)
from quintet.backends.native.worker.compiling import Compiling
from quintet.backends.vllm import adapters
from quintet.backends.vllm.adapters import Adapters
from quintet.backends.vllm.images import Pictures
from quintet.backends.vllm.processing import ImageProcessing, Maker
from quintet.backends.vllm.sequences import MOST_ENDS, Rows, VllmSequence, sequences_of
from quintet.backends.vllm.sidecar import Sidecar
from quintet.backends.vllm.values import About, Asked, CoreDeadError, Output, Processed, RejectedError, Scored, Step
from quintet.backends.vllm.wire import encode_choose
from quintet.events import Blame, Finish
from quintet.inputs.images.value import PreparedImage

BEAT_S = 0.5
"""How often vLLM's death is looked for where nobody waits for it, and it is said that something goes on: guides are compiled, say."""

ENTER_S = 300.0
"""An adapter may take so long to load, or a sequence's images until vLLM has them, while no step is finished. What takes longer hangs."""

REJECTED = "The engine cannot take this request."
DEAD = "vLLM's engine has ended."
_log = logging.getLogger(__name__)


class Core(adapters.Core, Protocol):
    """``VllmCore``, as far as it is needed here."""

    about: About

    @property
    def processor(self) -> Maker | None:
        """Of images; ``None`` = vLLM's own is not used."""
        ...

    def run(self, asked: Asked) -> AsyncIterator[Output]:
        """See ``VllmCore``."""
        ...

    @property
    def dead(self) -> bool:
        """See ``VllmCore``."""
        ...


class VllmWorker:
    """Used on one event loop.

    Args:
        clock: seconds, on the clock that the front uses too.
        send: tells the front.
        eos_ids: tokens that end a sequence.
    """

    def __init__(self, sidecar: Sidecar, clock: Callable[[], float], send: Callable[[FromWorker], None], eos_ids: frozenset[int]) -> None:
        self._sidecar, self._clock, self._send, self._eos_ids = sidecar, clock, send, eos_ids
        self._compiling = Compiling(sidecar, clock, self._compiled_soon)
        self._pictures = Pictures(send)
        self._waiting: FairQueue[VllmSequence] = FairQueue()
        self._queued: set[VllmSequence] = set()  # those in it
        self._requests: dict[int, list[VllmSequence]] = {}  # that have not ended
        self._started: set[int] = set()  # of these, whom the front was told of
        self._tasks: dict[VllmSequence, asyncio.Task[None]] = {}
        self._entering: dict[VllmSequence, float] = {}  # of these, those whose images vLLM does not have yet, and since when
        self._keys = 0
        self._events: Events = {}
        self._telling = self._heard = False
        self._counts, self._step = Counts(), Step(0, 0, 0.0)
        self._ended = asyncio.Event()
        self._end = Died()

    def attach(self, core: Core) -> None:
        """vLLM is there."""
        self._loop, self._core = asyncio.get_running_loop(), core
        self._adapters = Adapters(core, core.about.most_adapters, self._clock)
        self._processing = ImageProcessing(core.processor, self._send) if core.processor is not None else None
        running = core.about.most_running
        self._most = running + running // 8 + 1  # a few wait in vLLM, so that a place is taken in the step in which it becomes free

    async def run(self) -> Died:
        """Until ``Stop``, or until vLLM has ended; what the front is to be told."""
        for sock in self._sidecar.sockets():
            self._loop.add_reader(sock, self._sidecar.hear)
        while not self._ended.is_set():
            try:
                async with asyncio.timeout(BEAT_S):
                    await self._ended.wait()
            except TimeoutError:
                self._look()
        for task in self._tasks.values():
            task.cancel()
        if self._processing is not None:
            self._processing.close()
        return self._end

    def stepped(self, step: Step) -> None:
        """vLLM has finished a step; called before the outputs of it are looked at."""
        self._step = step
        done = self._counts
        self._counts = done._replace(
            steps=done.steps + 1,
            tokens=done.tokens + step.prefilled + step.generated,
            prefilled=done.prefilled + step.prefilled,
            preempted=done.preempted + step.preempted,
            queried=done.queried + step.queried,
            found=done.found + step.found,
        )
        self._tell_soon()

    def hear(self, message: ToWorker) -> None:
        """Have ``receive`` called, from another thread."""
        self._loop.call_soon_threadsafe(self.receive, message)

    def receive(self, message: ToWorker) -> None:
        """What the front says."""
        match message:
            case Submit():
                if self._compiling.begin(message):
                    self._begin(message.request_id)  # should it take vLLM's workers along, it is a suspect
                else:
                    self._add(message)
            case Abort(request_id, seq):
                ended = self._compiling.abort(request_id, seq)
                if ended is None:
                    self._abort(request_id, seq)
                else:
                    self._merge(ended)
            case Stop():
                self._ended.set()
            case Ping() | Shed():  # vLLM's memory was taken when it started
                self._tell_soon()
            case Pixels():
                self._pictures.take(message)
            case Expand():
                assert self._processing is not None, "the front asks where it was told of a processor"
                self._processing.expand(message)

    def _look(self) -> None:
        if self._core.dead:
            self._die()
        self._merge(self._compiling.overdue())
        # Of adapters it counts how long the one has taken whose turn it is: many may wait for it, each of them not for long.
        begun = [*self._entering.values()]
        if self._adapters.since is not None:
            begun.append(self._adapters.since)
        if self._compiling or any(self._clock() - since <= ENTER_S for since in begun):
            self._tell_soon()

    def _compiled_soon(self, request_id: int) -> None:
        self._loop.call_soon(self._compiled, request_id)

    def _compiled(self, request_id: int) -> None:
        submit, aborts, events = self._compiling.end(request_id)
        self._merge(events)
        if submit is not None:
            self._add(submit)
        for seq in aborts:
            self._abort(request_id, seq)

    def _add(self, submit: Submit) -> None:
        sequences = sequences_of(submit)
        self._requests[submit.request_id] = [*sequences]
        for sequence in sequences:
            if sequence.group.leader is sequence:
                self._queue(sequence)
        self._fill()

    def _queue(self, sequence: VllmSequence) -> None:
        self._waiting.push(sequence)
        self._queued.add(sequence)

    def _fill(self) -> None:
        """Start those whose turn it is, as far as vLLM has places."""
        while len(self._tasks) < self._most and self._waiting.head() is not None:
            sequence = self._waiting.pop()
            self._queued.remove(sequence)
            self._start(sequence)

    def _start(self, sequence: VllmSequence) -> None:
        if sequence.computes:
            self._keys += 1
            sequence.key = self._keys
            self._begin(sequence.request_id)
            task = self._tasks[sequence] = self._loop.create_task(self._follow(sequence))
            task.add_done_callback(lambda _: self._left(sequence))  # one that is cancelled before it begins runs nothing of its own
        else:
            sequence.waited = max(0.0, self._clock() - sequence.group.submitted)
        if not sequence.scores_prompt:
            self._echo(sequence, ())
        if not sequence.computes:
            self._tell(sequence, [sequence.end(Finish.LENGTH)])

    def _begin(self, request_id: int) -> None:
        if request_id not in self._started:
            self._started.add(request_id)
            self._send(Started((request_id,)))

    def _echo(self, sequence: VllmSequence, scored: tuple[Scored, ...]) -> None:
        """What is echoed for its group, if it leads it; the others may begin then."""
        group = sequence.group
        if group.leader is sequence:
            group.leader = None
            self._tell(sequence, sequence.echo(scored))
            for follower in group.followers:
                self._queue(follower)
            group.followers = []

    async def _follow(self, sequence: VllmSequence) -> None:
        """One sequence, from vLLM's first step of it to its end."""
        try:
            async with self._adapters.held(sequence.group.adapter):
                self._entering[sequence] = self._clock()
                if self._processing is not None:
                    await self._run(sequence, sequence.asked.images, await self._processed(self._processing, sequence))
                else:
                    async with self._pictures.held(sequence.request_id, sequence.asked.images) as images:
                        await self._run(sequence, images)
        except CoreDeadError:
            self._die()
        except RejectedError as rejected:
            self._tell(sequence, [sequence.end(Finish.ERROR, str(rejected) or REJECTED)])
        except Exception:
            _log.exception("a sequence could not be followed")
            self._tell(sequence, [sequence.end(Finish.ERROR, FAILED)])

    async def _processed(self, processing: ImageProcessing, sequence: VllmSequence) -> tuple[Processed, ...]:
        """What vLLM's processor makes of its images: of its request's check, or made again."""
        salt, images = sequence.asked.salt, sequence.asked.images
        if not images:
            return ()
        if (kept := processing.kept(salt, images)) is not None:
            return kept
        async with self._pictures.held(sequence.request_id, images) as with_pixels:
            return await processing.processed(salt, with_pixels)

    def _left(self, sequence: VllmSequence) -> None:
        """Its place in vLLM is free."""
        del self._tasks[sequence]
        self._entering.pop(sequence, None)
        self._sidecar.refused.pop(sequence.key, None)
        if not self._ended.is_set():
            self._fill()

    async def _run(self, sequence: VllmSequence, images: tuple[PreparedImage, ...], processed: tuple[Processed, ...] = ()) -> None:
        del self._entering[sequence]
        ends = sequence.ends(self._eos_ids)
        outputs = self._core.run(_asked(sequence, ends, images, processed, whole=sequence.fills(self._core.about.context)))
        async for output in outputs:
            self._take(sequence, output, ends)
            if sequence.ended:
                break
        await outputs.aclose()  # type: ignore[attr-defined]
        if not sequence.ended:
            self._tell(sequence, [sequence.end(Finish.LENGTH)])

    def _take(self, sequence: VllmSequence, output: Output, ends: frozenset[int]) -> None:
        self._hear()
        if not sequence.generated and output.scheduled:
            sequence.waited = max(0.0, output.scheduled - sequence.group.submitted)
        sequence.cached = max(sequence.cached, output.cached)
        if output.prompt is not None and sequence.group.leader is sequence:
            scored = output.prompt + (output.scored if sequence.fills(self._core.about.context) else ())
            if not all(math.isfinite(own) for own, _ in scored):
                self._fail(sequence)
                return
            self._echo(sequence, scored)
            self._fill()
        if sequence.asked.max_tokens == 0:
            self._tell(sequence, [sequence.end(Finish.LENGTH)])
        else:
            self._tell(sequence, sequence.take(output.tokens, output.scored, ends, self._sidecar.refused.get(sequence.key)))

    def _hear(self) -> None:
        """What choosers have said, once in this turn of the loop: they said it before vLLM passed on what is looked at now."""
        if not self._heard:
            self._heard = True
            self._sidecar.hear()
            self._loop.call_soon(self._unheard)

    def _unheard(self) -> None:
        self._heard = False

    def _fail(self, leader: VllmSequence) -> None:
        """The prompt's log-probabilities are no numbers: an end for all of the group."""
        followers, leader.group.followers, leader.group.leader = leader.group.followers, [], None
        for member in (leader, *followers):
            self._tell(member, [member.end(Finish.ERROR, NUMERICAL, Blame.NUMBERS)])

    def _abort(self, request_id: int, seq: int | None) -> None:
        for sequence in [*self._requests.get(request_id, ())]:
            if seq in (None, sequence.index):
                if sequence in self._queued:
                    self._queued.remove(sequence)
                    self._waiting.remove(sequence)
                elif task := self._tasks.get(sequence):
                    task.cancel()
                self._tell(sequence, [sequence.end(Finish.ABORT)])
        self._fill()

    def _tell(self, sequence: VllmSequence, rows: Rows) -> None:
        """Events of a sequence, in order; one that ends leads nobody any more."""
        if rows:
            self._merge({sequence.request_id: rows})
        if not sequence.ended or sequence not in (left := self._requests.get(sequence.request_id, [])):
            return
        left.remove(sequence)
        if not left:
            del self._requests[sequence.request_id]
            self._started.discard(sequence.request_id)
        group = sequence.group
        if sequence in group.followers:
            group.followers.remove(sequence)
        elif group.leader is sequence:
            group.leader = group.followers.pop(0) if group.followers else None
            if group.leader is not None:
                self._queue(group.leader)

    def _merge(self, events: Events) -> None:
        for request_id, rows in events.items():
            self._events.setdefault(request_id, []).extend(rows)
        if events:
            self._tell_soon()

    def _tell_soon(self) -> None:
        """Once for all that happens in this turn of the loop, which is what a step of vLLM gives."""
        if not self._telling:
            self._telling = True
            self._loop.call_soon(self._tell_now)

    def _tell_now(self) -> None:
        self._telling = False
        events, self._events = self._events, {}
        about, step = self._core.about, self._step
        waiting = step.waiting + sum(len(sequences) for sequences in self._requests.values()) - len(self._tasks)
        pages = Pages(about.pages, about.page, round(about.pages * step.usage))
        self._send(Stepped(step.running, max(0, waiting), self._counts, pages, events))

    def _die(self) -> None:
        self._end = Died(DEAD)
        self._ended.set()


def _asked(
    sequence: VllmSequence, ends: frozenset[int], images: tuple[PreparedImage, ...], processed: tuple[Processed, ...], *, whole: bool
) -> Asked:
    """
    Args:
        whole: see ``VllmSequence.fills``.
    """
    own = sequence.asked
    return Asked(
        name=str(sequence.key),
        tokens=own.tokens[:-1] if whole else own.tokens,
        max_tokens=max(1, own.max_tokens),
        salt=own.salt.hex(),
        logprobs=own.logprobs if own.max_tokens or whole else None,
        prompt_logprobs=own.logprobs if sequence.scores_prompt else None,
        ends=tuple(sorted(ends)[:MOST_ENDS]),
        choose=encode_choose(sequence.choose_last() if whole else sequence.choose()),
        adapter=sequence.group.adapter,
        images=images,
        processed=processed,
    )
