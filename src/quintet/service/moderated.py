"""A request whose texts are judged: nothing of an output is told before a moderation model has called it safe.

An output is judged in chunks, each with all that came before it, while the next one is generated; of each choice one chunk at a time,
in order. Where chunks end is a matter of the choice's own tokens, so that what is shown does not depend on who is faster.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from quintet.backends.base import Backend
from quintet.errors import QuintetError, UnsafePrompt
from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finish, Finished, Flagged
from quintet.inputs.sequence import Prepared
from quintet.moderation.judge import Judge
from quintet.request import CompletionRequest
from quintet.service.fan_out import tells_prompt
from quintet.service.job import SETTLE_S, Job
from quintet.service.watch import Watch

FIRST_TOKENS = 4
"""Of a choice's first chunk, so that there is soon something to see."""

CHUNK_TOKENS = 16
"""Of the others. A judgement costs a chunk's tokens and what the format puts after them, which is some 60, in one step."""

_log = logging.getLogger(__name__)
_BROKEN = "The moderation model failed."


async def require_safe(judge: Judge, prompts: Sequence[str]) -> None:
    """Judge prompts, each once.

    Raises:
        UnsafePrompt: one of them is not safe.
        PromptTooLong, Loading, Overloaded, TooManyRequests, EngineFailed: see ``Judge.judge``.
    """
    for at, prompt in enumerate(prompts):
        if prompt and prompt not in prompts[:at] and (flagged := await judge.judge(prompt)):
            raise UnsafePrompt("prompt" if len(prompts) == 1 else f"prompt[{at}]", flagged.words)


@dataclass(slots=True)
class _Chunk:
    """What is shown once the choice's output up to its end was judged.

    Args:
        end, tokens: characters and tokens of the output up to there.
    """

    deltas: list[ChoiceDelta]
    end: int
    tokens: int


@dataclass(slots=True)
class _Lane:
    """A choice on its way to the client.

    Args:
        echoes: the first delta is the prompt's, which was judged.
        text, tokens: of all that was generated and not echoed.
        open: deltas of the chunk that grows, which has ``size`` tokens so far.
        chunks: that wait for their judgement; the first may be under way.
        done: how the choice ended, which is told after the last chunk.
        closed: it was told.
    """

    echoes: bool
    text: str = ""
    tokens: int = 0
    open: list[ChoiceDelta] = field(default_factory=list)
    size: int = 0
    chunks: deque[_Chunk] = field(default_factory=deque)
    done: ChoiceDone | None = None
    closed: bool = False

    def add(self, delta: ChoiceDelta) -> ChoiceDelta | None:
        """Take a delta; gives it back if it may be shown without a judgement."""
        if self.echoes:
            self.echoes = False
            return delta
        self.text += delta.text
        self.tokens += len(delta.tokens)
        self.size += len(delta.tokens)
        self.open.append(delta)
        if self.size >= (FIRST_TOKENS if self.tokens == self.size else CHUNK_TOKENS):
            self.end_chunk()
        return None

    def end_chunk(self) -> None:
        """What is open is judged as it is."""
        if self.open:
            self.chunks.append(_Chunk(self.open, len(self.text), self.tokens))
            self.open, self.size = [], 0


class ModeratedJob(Job):
    """See ``Job``.

    Args:
        prompts: the request's, as texts.
    """

    def __init__(
        self, backend: Backend, prepared: Prepared, request: CompletionRequest, watch: Watch, judge: Judge, prompts: Sequence[str]
    ) -> None:
        super().__init__(backend, prepared, request, watch)
        self._judge, self._prompts, self._n = judge, prompts, request.n
        self._lanes = [_Lane(tells_prompt(request)) for _ in range(len(prompts) * request.n)]
        self._judging: dict[asyncio.Task[Flagged | None], int] = {}
        self._incoming: deque[list[Event]] = deque()  # of the engine, not looked at yet
        self._news = asyncio.Event()  # something came in, a judgement is there, or the job was cancelled
        self._reading: asyncio.Task[None] | None = None
        self._finished: Finished | None = None  # the engine's last event, which is told when all choices are

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """See ``Job``."""
        self._reading = asyncio.create_task(self._read_engine())
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                told = _up_to_failure(self._next_events())
                if told:
                    yield told
                    if isinstance(told[-1], Finished | Failed):
                        return
                self._ask()
        finally:
            self._stop()
            for task in self._judging:
                task.cancel()
            await asyncio.gather(*self._judging, return_exceptions=True)
            await self.settled()

    def _next_events(self) -> list[Event]:
        """What may be told now."""
        told: list[Event] = []
        while self._incoming:
            told += self._take(self._incoming.popleft())
        told += self._judged()
        if self._finished is not None and self._cancelled:
            told += self._called_off()
        if self._finished is not None and all(lane.closed for lane in self._lanes):
            told.append(replace(self._finished, usage=self.usage))  # tokens behind an unsafe chunk do not count
        return told

    def cancel(self) -> None:
        """See ``Job``. What was not judged by now is never told."""
        super().cancel()
        for task in self._judging:
            task.cancel()
        self._news.set()

    async def settled(self) -> None:
        """See ``Job``."""
        if self._reading is None:
            await super().settled()
            return
        await asyncio.wait({self._reading}, timeout=SETTLE_S)
        self._reading.cancel()
        await asyncio.wait({self._reading})

    async def _read_engine(self) -> None:
        """What comes of the engine, whoever waits for what; it always ends by itself, once its work was done or called off."""
        async for batch in super().events():
            self._incoming.append(batch)
            self._news.set()

    def _called_off(self) -> list[Event]:
        told: list[Event] = []
        for index, lane in enumerate(self._lanes):
            if not lane.closed:
                told += self._close(lane, ChoiceDone(index, Finish.ABORT, seed=self._seed(index)))
        return told

    def _seed(self, index: int) -> int:
        done = self._lanes[index].done  # of the best of several candidates, which has another number
        return done.seed if done else self._prepared.sequences[index].sampling.seed

    def _take(self, batch: Sequence[Event]) -> list[Event]:
        """What may be told at once of what came."""
        told: list[Event] = []
        for event in batch:
            match event:
                case ChoiceDelta():
                    lane = self._lanes[event.index]
                    if not lane.closed and (shown := lane.add(event)):
                        told.append(shown)
                case ChoiceDone():
                    told += self._end(self._lanes[event.index], event)
                case Finished():
                    self._finished = event
                case Failed():
                    told.append(event)
        return told

    def _end(self, lane: _Lane, done: ChoiceDone) -> list[Event]:
        if lane.closed:
            return []
        lane.done = done
        if done.finish in (Finish.ABORT, Finish.ERROR):
            return self._close(lane, done)
        lane.end_chunk()
        return [] if lane.chunks else self._close(lane, done)

    def _close(self, lane: _Lane, done: ChoiceDone) -> list[Event]:
        lane.chunks.clear()
        lane.open, lane.closed = [], True
        return [done]

    def _judged(self) -> list[Event]:
        """What follows from the judgements that are there, by choice."""
        told: list[Event] = []
        done = sorted((index, task) for task, index in self._judging.items() if task.done())
        for index, task in done:
            del self._judging[task]
            lane = self._lanes[index]
            if not lane.closed:
                told += self._verdict(index, lane, task)
        return told

    def _verdict(self, index: int, lane: _Lane, task: asyncio.Task[Flagged | None]) -> list[Event]:
        if task.cancelled():
            return self._close(lane, ChoiceDone(index, Finish.ABORT, seed=self._seed(index)))
        if (error := task.exception()) is not None:
            return [_failure(error)]
        chunk = lane.chunks.popleft()
        if (flagged := task.result()) is not None:
            self._cut(index, chunk.tokens)
            return self._close(lane, ChoiceDone(index, Finish.FILTER, seed=self._seed(index), flagged=flagged, tokens=chunk.tokens))
        if lane.done is None or lane.chunks:
            return [*chunk.deltas]
        return [*chunk.deltas, *self._close(lane, lane.done)]

    def _ask(self) -> None:
        """Have the next chunk of each choice judged that has one; one at a time."""
        busy = set(self._judging.values())
        for index, lane in enumerate(self._lanes):
            if lane.chunks and index not in busy and not self._cancelled:
                output = lane.text[: lane.chunks[0].end]
                task = asyncio.create_task(self._judge.judge(self._prompts[index // self._n], output, index))
                task.add_done_callback(lambda _: self._news.set())
                self._judging[task] = index


def _up_to_failure(events: list[Event]) -> list[Event]:
    """A failure is the last that is told, whatever else came with it."""
    for at, event in enumerate(events):
        if isinstance(event, Failed):
            return events[: at + 1]
    return events


def _failure(error: BaseException) -> Failed:
    if isinstance(error, QuintetError):
        return Failed.by(error)
    _log.error("a judgement broke", exc_info=error)
    return Failed(_BROKEN)
