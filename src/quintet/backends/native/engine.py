"""``Backend`` over the embedded engine: the event loop's side. The worker thread does the rest."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from queue import SimpleQueue

from quintet.backends.base import Capabilities, Health, Prepared, SequenceSpec, State
from quintet.backends.native.core import Loader, Tokenizer
from quintet.backends.native.messages import Abort, Died, FromWorker, Progress, Ready, Stepped, Stop, Submit, ToWorker
from quintet.backends.native.prepare import resolve, texts
from quintet.backends.native.scheduler import live_limit
from quintet.backends.native.stream import Stream
from quintet.backends.native.worker import Worker
from quintet.config import EngineConfig
from quintet.errors import EngineFailed, Loading, Overloaded
from quintet.events import Finish, TokenEvent

STALL_S = 10.0
"""Work waits and no step finished for so long: the engine hangs, whatever its port says."""

INLINE_CHARS = 4096
"""Most characters tokenised on the event loop itself; that takes about as long as handing them to a thread."""

_JOIN_S = 10.0  # a step cannot be interrupted; one that takes longer is left to the end of the process
_DIED = "The engine has failed."


class Engine:
    """The embedded engine; loading begins at once, in the background. Make it on the event loop that will use it.

    Args:
        loader: brings the model into memory, in the worker thread.
        clock: seconds, monotonic.
    """

    def __init__(self, loader: Loader, config: EngineConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._state = State.LOADING
        self._progress = 0.0
        self._capabilities: Capabilities | None = None
        self._tokenizer: Tokenizer | None = None
        self._max_live = live_limit(config)
        self._streams: dict[int, Stream] = {}  # of requests that have not ended
        self._live = 0  # their sequences that have not ended
        self._steps = self._running = self._waiting = 0
        self._moved = clock()  # when a step last finished or work arrived at an idle engine
        self._ids = itertools.count(1)
        self._inbox: SimpleQueue[ToWorker] = SimpleQueue()
        worker = Worker(loader, config, clock, self._inbox, self._send)
        self._thread = threading.Thread(target=worker.run, name="quintet-engine", daemon=True)
        self._thread.start()

    @property
    def capabilities(self) -> Capabilities:
        """See ``Backend``.

        Raises:
            Loading: the model is not loaded.
        """
        if self._capabilities is None:
            raise Loading("The model is still loading.")
        return self._capabilities

    async def prepare(self, specs: Sequence[SequenceSpec]) -> Prepared:
        """See ``Backend``."""
        tokenizer = self._require_open()
        self._require_room(len(specs))
        wanted = texts(specs)
        if sum(map(len, wanted)) > INLINE_CHARS:
            encoded = await asyncio.to_thread(_encode, tokenizer, wanted)
        else:
            encoded = _encode(tokenizer, wanted)
        sequences = resolve(specs, encoded, self.capabilities, _separator(tokenizer))
        self._require_open()
        self._require_room(len(specs))  # others may have come meanwhile; nothing can between this and submit
        return Prepared(next(self._ids), sequences)

    def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        """See ``Backend``."""
        stream = Stream(len(prepared.sequences))
        if self._state is not State.READY:
            self._end(stream)
            return stream
        now = self._clock()
        if not self._live:
            self._moved = now
        self._streams[prepared.request_id] = stream
        self._live += stream.open
        self._inbox.put(Submit(prepared.request_id, prepared.sequences, now))
        return stream

    def abort(self, request_id: int, seq: int | None = None) -> None:
        """See ``Backend``."""
        if request_id in self._streams:
            self._inbox.put(Abort(request_id, seq))

    def health(self) -> Health:
        """See ``Backend``."""
        stalled = self._state is State.READY and self._live and self._clock() - self._moved > STALL_S
        return Health(State.STALLED if stalled else self._state, self._progress, self._steps, self._running, self._waiting)

    async def close(self) -> None:
        """See ``Backend``."""
        if self._state is not State.CLOSED:
            self._state = State.CLOSED
            self._inbox.put(Stop())
            self._end_all()
        await asyncio.to_thread(self._thread.join, _JOIN_S)

    def _require_open(self) -> Tokenizer:
        if self._state is State.CLOSED:
            raise Overloaded("The server is shutting down.")
        if self._state is State.DEAD:
            raise EngineFailed(_DIED)
        if self._tokenizer is None:
            raise Loading(f"The model is still loading ({self._progress:.0%}).")
        return self._tokenizer

    def _require_room(self, count: int) -> None:
        if self._live + count > self._max_live:
            raise Overloaded("The queue is full; try again later.")

    def _send(self, message: FromWorker) -> None:
        """Called in the worker's thread: one wake-up of the event loop per message."""
        try:
            self._loop.call_soon_threadsafe(self._take, message)
        except RuntimeError:  # the loop was closed without ``close``: nobody is left to tell
            self._inbox.put(Stop())

    def _take(self, message: FromWorker) -> None:
        if self._state in (State.CLOSED, State.DEAD):
            return
        match message:
            case Stepped(events, steps, running, waiting):
                self._steps, self._running, self._waiting = steps, running, waiting
                self._moved = self._clock()
                for request_id, batch in events.items():
                    self._push(request_id, batch)
            case Progress(share):
                self._progress = share
            case Ready(capabilities, tokenizer):
                self._capabilities, self._tokenizer = capabilities, tokenizer
                self._state, self._progress = State.READY, 1.0
            case Died():
                self._state = State.DEAD
                self._end_all()

    def _push(self, request_id: int, batch: Sequence[TokenEvent]) -> None:
        stream = self._streams[request_id]
        before = stream.open
        stream.push(batch)
        self._live -= before - stream.open
        if not stream.open:
            del self._streams[request_id]

    def _end_all(self) -> None:
        for stream in self._streams.values():
            self._end(stream)
        self._streams.clear()
        self._live = self._running = self._waiting = 0

    def _end(self, stream: Stream) -> None:
        if self._state is State.DEAD:
            stream.end(Finish.ERROR, _DIED)
        else:
            stream.end(Finish.ABORT)


def _separator(tokenizer: Tokenizer) -> int | None:
    """The token that stands for an empty prompt: what the tokenizer names, else an end-of-sequence token."""
    named: int | None = getattr(tokenizer, "separator", None)
    return min(tokenizer.eos_ids, default=None) if named is None else named


def _encode(tokenizer: Tokenizer, wanted: Sequence[str]) -> dict[str, list[int]]:
    return {text: tokenizer.encode(text) for text in wanted}
