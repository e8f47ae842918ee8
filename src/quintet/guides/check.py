"""Guides are checked in processes that may crash (``process``), before anything of the request starts. The event loop's side.

A few are checked at once; the others wait, each tenant in a line of its own, and the lines take turns. So one tenant's slow guides are in
the way of its own and of no other's. What came of a guide is kept for everybody.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from quintet.errors import BadRequest, Overloaded, TooManyRequests
from quintet.forks.parent import Forks
from quintet.guides.protocol import END, REFUSED, TAKEN, TOO_COMPLEX, WALL_S, GuideError
from quintet.request import Guide, GuideKind
from quintet.shares import exceeds_share
from quintet.turns import Turns

MAX_BYTES = 256 * 1024
"""Longest guide; the largest schemas that people use are a tenth of it."""

AT_ONCE = 2
MAX_WAITING = 128
"""Guides that wait for their turn; an ordinary one takes a hundredth of a second."""

WAIT_S = 5.0
"""And for no longer than this, which they do if many before them are hostile."""

SOON_S = 1.0
"""A check that ends within this without an answer is made once more: it may have been ended from outside, for the memory of others say.
What takes too much time of its own takes longer."""

DEATH_S = 60.0
"""So long a guide counts as too complex whose check gave no answer, lest hostile ones take a process each time. It may not have been its
fault."""

CACHE_BYTES = 16 << 20
_ENTRY_BYTES = 400  # of the table and of what holds an entry together, in CPython
_MANY = "Too many schemas and grammars are being checked; try again later."
_OWN = "Too many schemas and grammars of this API key are being checked; try again later."


class Content(NamedTuple):
    """What a guide asks for, whichever field of a request it is in."""

    kind: GuideKind
    text: str


class Key(NamedTuple):
    """A tenant's check: whoever asks for what another's line holds already does not wait in that line."""

    tenant: str
    content: Content


@dataclass(slots=True)
class Checked:
    """What was done; none of it ever goes down.

    Args:
        taken, refused: guides that can be followed, and that cannot; each counts once, as what came of it is kept.
        failed: there was no answer: the machine was too busy, or too many others waited.
        known: guides that were asked for and had been checked.
        seconds: from asking to the answer, of all that were checked.
    """

    taken: int = 0
    refused: int = 0
    failed: int = 0
    known: int = 0
    seconds: float = 0.0


class GuideCheck:
    """Checks guides, each once however many ask for it, and remembers what came of it. One serves all models of a server."""

    def __init__(self) -> None:
        self._known: OrderedDict[Content, str | GuideError] = OrderedDict()
        self._bytes = 0
        self._checks: dict[Key, asyncio.Task[str | GuideError]] = {}
        self._running: Counter[str] = Counter()  # tenant -> how many of ``_checks`` are its
        self._turns = Turns(AT_ONCE)
        self.checked = Checked()
        self._processes = Forks("quintet.guides.process", WALL_S, "Schemas and grammars cannot be checked.")

    async def translate(self, guides: Iterable[Guide | None], tenant: str = "") -> dict[Guide, str]:
        """Each distinct guide as ``matcher.Compiler`` takes it.

        Args:
            tenant: who asks; empty where there are no keys, and everybody is one.

        Raises:
            BadRequest: one cannot be followed.
            TooManyRequests: this tenant has too many checked already.
            Overloaded: too many are being checked, or the machine is too busy.
        """
        return {guide: await self._translate(guide, tenant) for guide in dict.fromkeys(guides) if guide is not None}

    async def close(self) -> None:
        """End the processes, and whoever waits for them."""
        for check in self._checks.values():
            check.cancel()
        await asyncio.gather(*self._checks.values(), return_exceptions=True)
        self._processes.close()

    async def _translate(self, guide: Guide, tenant: str) -> str:
        content = Content(guide.kind, guide.text)
        if content in self._known:
            self.checked.known += 1
            self._known.move_to_end(content)
            result = self._known[content]
        else:
            key = Key(tenant, content)
            result = await asyncio.shield(self._checks.get(key) or self._start(key))
        if isinstance(result, GuideError):
            raise BadRequest(guide.param, str(result), code="grammar_too_complex" if str(result) == TOO_COMPLEX else "invalid_value")
        return result

    def _start(self, key: Key) -> asyncio.Task[str | GuideError]:
        room = AT_ONCE + MAX_WAITING - len(self._checks) - 1
        if exceeds_share(key.tenant, self._running[key.tenant], 1, room):
            raise TooManyRequests(_OWN)
        if room < 0:
            raise Overloaded(_MANY)
        loop = asyncio.get_running_loop()
        task, begun = loop.create_task(self._check(key)), loop.time()
        self._checks[key] = task
        self._running[key.tenant] += 1
        task.add_done_callback(lambda _: self._done(key, loop.time() - begun))
        return task

    def _done(self, key: Key, seconds: float) -> None:
        task = self._checks.pop(key)
        self._running[key.tenant] -= 1
        if not self._running[key.tenant]:
            del self._running[key.tenant]
        self.checked.seconds += seconds
        if task.cancelled() or task.exception() is not None:
            self.checked.failed += 1
            return
        result = task.result()
        if isinstance(result, GuideError):
            self.checked.refused += 1
        else:
            self.checked.taken += 1
        self._keep(key.content, result)
        if isinstance(result, _NoAnswerError):
            asyncio.get_running_loop().call_later(DEATH_S, self._forget, key.content)

    async def _check(self, key: Key) -> str | GuideError:
        kind, text = key.content
        encoded = text.encode("utf-8", "surrogatepass")
        if len(encoded) > MAX_BYTES:
            return GuideError(f"must be at most {MAX_BYTES} bytes")
        await self._processes.start()  # before the wait is timed: that it takes long is no other guide's fault
        await self._turn(key.tenant)
        try:
            reply = await self._answer(kind.name.encode() + b"\n" + encoded)
        finally:
            self._turns.release()
        if reply.startswith(TAKEN):
            return reply.removeprefix(TAKEN)
        return GuideError(reply.removeprefix(REFUSED)) if reply else _NoAnswerError(TOO_COMPLEX)

    async def _answer(self, request: bytes) -> str:
        """What the process says; empty = it died of the guide, or so it seems, before it had said all."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        reply = await self._processes.ask(request, whole=_whole)
        if not _whole(reply) and loop.time() - begin < SOON_S:
            reply = await self._processes.ask(request, whole=_whole)
        return reply.removesuffix(END).decode() if _whole(reply) else ""

    async def _turn(self, tenant: str) -> None:
        try:
            await asyncio.wait_for(self._turns.acquire(tenant), WAIT_S)
        except TimeoutError:
            raise TooManyRequests(_OWN) if tenant and self._running[tenant] > AT_ONCE else Overloaded(_MANY) from None

    def _keep(self, content: Content, result: str | GuideError) -> None:
        if content in self._known:  # two tenants asked for it
            return
        self._known[content] = result
        self._bytes += _size(content, result)
        while len(self._known) > 1 and self._bytes > CACHE_BYTES:
            self._bytes -= _size(*self._known.popitem(last=False))

    def _forget(self, content: Content) -> None:
        if content in self._known:
            self._bytes -= _size(content, self._known.pop(content))


class _NoAnswerError(GuideError):
    """The check ended without one."""


def _whole(reply: bytes) -> bool:
    return reply.endswith(END)


def _size(content: Content, result: str | GuideError) -> int:
    return _ENTRY_BYTES + sys.getsizeof(content.text) + sys.getsizeof(str(result))
