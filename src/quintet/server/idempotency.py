"""``Idempotency-Key``: a request that is sent again, because its answer was lost on the way, is computed once and answered twice.

A request with the header runs in a task of its own, for nobody in particular: what it sends is recorded, and whoever sent the request
follows the recording, from its first byte, while it is made or later. So a client that was cut off and comes again finds its answer, or
what there is of it so far; the work is not ended by its leaving. Only a whole answer is kept; after an error the next attempt computes.

The key belongs to the API key that sent it, and to the request's bytes: the same key with another request is an error, never another's
answer. Recordings live in this process, for ``KEEP_S`` seconds at most and as long as there is room; the first to go are the oldest of
whoever holds the most, so nobody can push out what others keep. What is being recorded has room too (``RecordingRoom``): an answer that
finds none is passed on without being kept. And as no number of connections is a bound to requests whose clients have left, those that are
being computed share one (``BEGUN_BYTES``).
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from quintet.errors import BadRequest, IdempotencyConflict, QuintetError, shorten
from quintet.inputs.room import Room
from quintet.server.asgi import Message
from quintet.server.bodies import MSGPACK, encoding, media
from quintet.server.call import Call, Endpoint
from quintet.server.gate import LARGE_BYTES, Gate
from quintet.server.guard import disconnected
from quintet.server.http import PIECE_BYTES, Request

HEADER = "idempotency-key"
REPLAYED = (b"idempotent-replayed", b"true")
"""As Stripe's servers mark an answer that was computed for an earlier request."""

KEEP_S = 3600.0
KEEP_BYTES = 64 * 1024 * 1024
"""Of all recordings that are complete."""

MOST_BYTES = 8 * 1024 * 1024
"""Of one, also while it is made; of a larger answer only what somebody has still to be sent is held, and then that it was given."""

OPEN_BYTES = 64 * 1024 * 1024
"""Of all recordings that are being made, but for the first ``SMALL_BYTES`` of each."""

SMALL_BYTES = 64 * 1024
"""An answer up to this size is always kept: there are no more of them at once than requests that the engines take."""

BEGUN_BYTES = 64 * 1024 * 1024
"""Of all requests that are being computed, as far as the room for large ones does not count them (``gate.LARGE_BYTES``)."""

_TASK_BYTES = 16 * 1024
"""What one takes beside its body."""

_ENTRY_BYTES = 2048
_HEADER_BYTES = 256
"""What a kept answer takes in memory beside its own bytes, and so does each of its headers."""

_KEY = re.compile(r"[!-~]{1,256}")


class _Name(NamedTuple):
    """Under which a recording is found.

    Args:
        caller: the salt of the API key; empty without keys.
        key: the ``Idempotency-Key``.
    """

    caller: str
    key: str


class RecordingRoom:
    """For recordings while they are made, shared between callers: one that holds more than an even part leaves half of it to others."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Bytes of all recordings that are being made."""
        return self._held.total()

    def take(self, caller: str, more: int) -> None:
        """So many bytes more, or less, are held for a caller."""
        self._held[caller] += more
        self._held += Counter()  # drops those with nothing

    def lacks(self, caller: str) -> bool:
        """There is none for more of a caller's."""
        total = self._held.total()
        greedy = self._held[caller] * len(self._held) > OPEN_BYTES
        return total > OPEN_BYTES or (greedy and total > OPEN_BYTES // 2)


class Once:
    """Endpoints under which a request with an ``Idempotency-Key`` is computed once.

    Args:
        most: bytes of a request's body.
        clock: seconds, monotonic.
    """

    def __init__(self, most: int, clock: Callable[[], float], gate: Gate) -> None:
        self._most = most
        self._clock = clock
        self._gate = gate
        self._room = RecordingRoom()
        self._begun = Room(BEGUN_BYTES, "requests with an Idempotency-Key")
        self._recordings: OrderedDict[_Name, Recording] = OrderedDict()  # the oldest first
        self._sizes: Counter[str] = Counter()  # bytes that are kept for each caller
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint, computing each such request once."""

        async def once(call: Call) -> None:
            if HEADER in call.http.headers:
                await self._answer(call, endpoint)
            else:
                await endpoint(call)

        return once

    async def _answer(self, call: Call, endpoint: Endpoint) -> None:
        try:
            recording, again = await self._recording(call, endpoint)
        except QuintetError:
            self._gate.tell(call)
            raise
        if again:
            call.http.let_go()
            call.facts["replay_of"] = recording.request_id
            self._gate.tell(call)
        await recording.play(call.http, again=again)

    async def _recording(self, call: Call, endpoint: Endpoint) -> tuple[Recording, bool]:
        """That of a request, which begins here or was there already.

        Raises:
            BadRequest: see ``_key``.
            IdempotencyConflict: its key was another's, or its answer was not kept.
            TooManyRequests, Overloaded: too many are being computed.
        """
        name = _Name(call.caller.salt, _key(call.http))
        body = await call.http.body(self._most, packed=call.provider.packed)
        digest = _digest(call, body)
        self._forget_old()
        recording = self._recordings.get(name)
        if recording is None:
            begun = call.caller.tenant, _size(call.http, body)
            self._begun.take(*begun)
            recording = self._recordings[name] = Recording(call.http.request_id, digest, self._clock(), self._room, name.caller)
            task = asyncio.create_task(self._run(name, recording, recording.detached(call, body), endpoint))
            call.http.hold = None  # whoever computes has the body, also when the client has left
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: self._begun.give(*begun))
            return recording, False
        if recording.digest != digest:
            raise IdempotencyConflict("This Idempotency-Key was used for another request; a key is for one request and its retries.", 422)
        if recording.dropped:
            raise IdempotencyConflict("The answer to this Idempotency-Key was too large to be kept, and cannot be given again.", 409)
        return recording, True

    async def _run(self, name: _Name, recording: Recording, call: Call, endpoint: Endpoint) -> None:
        """Compute, whoever listens; what fails is told to those who do, and forgotten."""
        await recording.make(call, endpoint)
        self._room.take(name.caller, -recording.size)
        if not recording.whole:
            del self._recordings[name]
            return
        recording.kept = True
        self._sizes[name.caller] += recording.size
        while self._sizes.total() > KEEP_BYTES:
            ((largest, _),) = self._sizes.most_common(1)
            self._forget(next(other for other, kept in self._recordings.items() if kept.kept and other.caller == largest))

    def _forget_old(self) -> None:
        now = self._clock()
        old: list[_Name] = []
        for name, recording in self._recordings.items():
            if now - recording.began < KEEP_S:
                break  # those behind it are younger
            if recording.kept:
                old.append(name)
        for name in old:
            self._forget(name)

    def _forget(self, name: _Name) -> None:
        self._sizes[name.caller] -= self._recordings.pop(name).size
        self._sizes += Counter()  # drops those with nothing


class Recording:
    """An answer, as it is sent. Once it is complete, nothing of the request is kept with it but what tells it from others.

    A place in it is a number: 0 before its head, and one more behind that, behind each byte of its body, and behind its end.

    Args:
        request_id: of the request that is answered.
        digest: of all that makes it this request.
        began: seconds.
        room: in which it is made, for ``caller``.
    """

    def __init__(self, request_id: str, digest: bytes, began: float, room: RecordingRoom, caller: str) -> None:
        self.request_id, self.digest, self.began = request_id, digest, began
        self._room, self._caller = room, caller
        self.size = 0
        self._grow(_ENTRY_BYTES)
        self.whole = False
        """The answer is complete, and no refusal."""
        self.kept = False
        """And nothing of its request is going on any more."""
        self.dropped = False
        """It is too large, or there is no room: what was sent of it is not here any more."""
        self._head: Message | None = None
        self._own: frozenset[bytes] = frozenset()  # names of its headers that are of the request and not of the answer
        self._body: bytes | bytearray = bytearray()
        self._first = 0  # byte of this, in the answer
        self._closed = False  # the body is complete
        self._players: dict[Request, int] = {}  # who is sent it, and the place that each is at
        self._played, self._more = _Bell(), _Bell()
        self._ended = False
        self._failure: Exception | None = None
        self._limits: Callable[[], Iterable[tuple[str, str]]] = tuple  # where they stand, for a refusal

    def detached(self, call: Call, body: bytes) -> Call:
        """A call that is answered into this recording. It alone has the body, until that is read."""

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._own = frozenset(name.encode("latin-1") for name, _ in (*call.http.always, *http.limits()))
            await self._record(message)

        http = call.http.detached(body, send)
        return replace(call, http=http)

    async def make(self, call: Call, endpoint: Endpoint) -> None:
        """Have a call that is ``detached`` answered."""
        try:
            await endpoint(call)
        except Exception as error:
            self._failure, self._limits = error, call.http.limits
        finally:
            call.http.let_go()
            self._ended = True
            self._body = bytes(self._body)  # without the room that it had to grow
            self._more.ring()

    async def play(self, http: Request, *, again: bool) -> None:
        """Send it, from the beginning to the end of the recording, or until the client leaves.

        Args:
            again: it is another's request that is being answered.

        Raises:
            Exception: what the endpoint raised.
        """
        leaving = asyncio.create_task(disconnected(http.receive))
        self._players[http] = 0
        try:
            while (at := self._players[http]) < self._end or not self._ended:
                sent = self._closed and at == self._end
                if leaving.done() and not sent:
                    break
                if at < self._end:
                    self._players[http] = await self._forward(http, at, again)
                    self._played.ring()
                elif sent:
                    await self._more.heard()  # the client may go; what the endpoint still notes of the answer is for the request's line
                else:
                    await asyncio.wait({leaving, self._more.heard()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            http.left = http.started and not ((self._closed or self._ended) and self._players[http] == self._end)
            del self._players[http]
            self._played.ring()
        if self._failure is not None:
            http.limits = self._limits  # the refusal goes out on the client's own request
            raise self._failure

    async def _forward(self, http: Request, at: int, again: bool) -> int:
        """Send what comes at a place, as it was sent, but for limits, which are told as they stand now, and for what a web page may see.

        Returns:
            The place behind it.
        """
        if at == 0:
            assert self._head is not None
            await http.forward(self._once_more(http, self._head) if again else self._head)
            return 1
        begin = at - 1 - self._first
        data = self._piece(begin)
        last = self._closed and begin + len(data) == len(self._body)
        await http.forward({"type": "http.response.body", "body": data, "more_body": not last})
        return at + len(data) + last

    def _piece(self, begin: int) -> bytes:
        """What comes at a byte; of a stream whole frames, where they are no longer than a piece."""
        data = bytes(self._body[begin : begin + PIECE_BYTES])
        frames = data.rfind(b"\n\n") + 2 if len(data) == PIECE_BYTES else 0
        return data[:frames] if frames > 1 else data

    def _once_more(self, http: Request, head: Message) -> Message:
        """The head for another request: what was the first one's own is this one's."""
        own = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (*http.always, *http.limits())]
        shared = [(name, value) for name, value in head["headers"] if name not in self._own]
        return {**head, "headers": [*shared, *own, REPLAYED]}

    @property
    def _end(self) -> int:
        return (self._head is not None) + self._first + len(self._body) + self._closed

    async def _record(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            self._grow(sum(_HEADER_BYTES + len(name) + len(value) for name, value in message["headers"]))
        else:
            self._body += message["body"]
            self._grow(len(message["body"]))
            self._closed = not message["more_body"]
        self._more.ring()
        held = len(self._body)
        if self.dropped or held > MOST_BYTES or (held > SMALL_BYTES and self._room.lacks(self._caller)):
            await self._pass_on()
        # Some endpoints say in words of their own that they refuse.
        self.whole = self._closed and self._head is not None and self._head["status"] < 400

    async def _pass_on(self) -> None:
        """Wait until everybody who is there has been sent what there is, and let go of it: from here on nobody new can begin."""
        self.dropped = True
        while any(at < self._end for at in self._players.values()):
            await self._played.heard()
        self._grow(-len(self._body))
        self._first += len(self._body)
        self._body = bytearray()

    def _grow(self, more: int) -> None:
        self.size += more
        self._room.take(self._caller, more)


class _Bell:
    """Wakes whoever waits for it when it rings; who begins to wait later waits for the next ring.

    Each kept answer has two, for which nobody waits any more: an empty list is a tenth of what an ``asyncio.Event`` takes in memory.
    """

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def heard(self) -> asyncio.Future[None]:
        """A future that is done at the next ring."""
        self._waiting.append(asyncio.get_running_loop().create_future())
        return self._waiting[-1]

    def ring(self) -> None:
        """Wake all who wait now."""
        waiting, self._waiting = self._waiting, []
        for heard in waiting:
            if not heard.done():
                heard.set_result(None)


def _key(http: Request) -> str:
    """
    Raises:
        BadRequest: there are several, or it is none.
    """
    given = http.headers.getlist(HEADER)
    if len(given) > 1 or not _KEY.fullmatch(given[0]):
        raise BadRequest("Idempotency-Key", "must be one header of 1 to 256 visible ASCII characters", shorten(", ".join(given)))
    return given[0]


def _size(http: Request, body: bytes) -> int:
    """What a request may take as long as it is computed; of a body that is packed as much as is not counted once it is read."""
    packed = encoding(http.headers) or media(http.headers)[0] in MSGPACK
    return _TASK_BYTES + (LARGE_BYTES if packed else min(len(body), LARGE_BYTES))


def _digest(call: Call, body: bytes) -> bytes:
    """Of the route, the dialect, how the body is written, and the body, but for when that was packed."""
    http = call.http
    route = call.route.name if call.route else ""
    parts = (route, call.provider.name, http.headers.get("content-type"), http.headers.get("content-encoding"))
    digest, view = hashlib.sha256("\n".join(parts).encode() + b"\n"), memoryview(body)
    digest.update(view[:4])
    # RFC 1952, MTIME, 4 bytes: "the time at which compression started", which is another in a retry that is compressed anew.
    digest.update(view[8 if encoding(http.headers) == "gzip" else 4 :])
    return digest.digest()
