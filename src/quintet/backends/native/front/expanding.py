"""Images on their way to an engine's own processor and back, before the request that they are of is submitted.

One prompt's images are with the engine at a time; the others wait here, tenants in turn. An engine that ends meanwhile has lost them, and
who asked is told to come again; images with which it has ended twice are refused for a while, as requests are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from quintet.backends.native.front.restarts import BLAME, Suspects
from quintet.backends.native.wire.messages import Expand, Expanded
from quintet.errors import Loading, Overloaded
from quintet.inputs.images.expansion import Expansion, UnprocessableError
from quintet.inputs.images.value import PreparedImage
from quintet.turns import Turns

WAIT_S = 15.0
"""For a turn: a photograph takes some tenths of a second."""

ANSWER_S = 60.0
"""For the answer. Until it comes after all, or the engine ends, nobody else has a turn."""

BUSY = "Too many images are being prepared; try again later."
ENDED = "The engine ended while it prepared the images, and is being started again."
REFUSED = "make the engine fail, twice so far; they are not tried again for a while"
MALFORMED = "cannot be taken: the model's own processor has not answered for each of them"


@dataclass(slots=True, eq=False)
class _Asked:
    """The images of a prompt that the engine is asked about.

    Args:
        key: by what they are blamed, should the engine end: their digest, and their tenant.
        images: how many.
    """

    number: int
    key: tuple[bytes, str]
    images: int
    answer: asyncio.Future[tuple[Expansion, ...]]


class Expanding:
    """Used on one event loop.

    Args:
        send: tells the engine.
        clock: seconds, monotonic.
        suspects: as of ``InFlight``.
    """

    def __init__(self, send: Callable[[Expand], None], clock: Callable[[], float], suspects: Suspects | None = None) -> None:
        self._send, self._clock = send, clock
        self._turns, self._suspects = Turns(1), Suspects() if suspects is None else suspects
        self._asked: _Asked | None = None  # with the engine
        self._numbers = 0

    async def ask(
        self, images: Sequence[PreparedImage], salt: bytes, tenant: str, require_open: Callable[[], None]
    ) -> tuple[Expansion, ...]:
        """See ``Expander.expand``.

        Args:
            require_open: raises if the engine takes nothing now.
        """
        require_open()
        key = blake2b(b"".join(image.digest for image in images), digest_size=32).digest(), tenant
        if self._suspects.blocked(*key, self._clock()):
            raise UnprocessableError(None, REFUSED)
        try:
            await asyncio.wait_for(self._turns.acquire(tenant), WAIT_S)
        except TimeoutError:
            raise Overloaded(BUSY) from None
        try:
            require_open()
            self._numbers += 1
            asked = _Asked(self._numbers, key, len(images), asyncio.get_running_loop().create_future())
            self._send(Expand(asked.number, salt, tuple(images)))
        except BaseException:
            self._turns.release()
            raise
        self._asked = asked
        try:
            return await asyncio.wait_for(asked.answer, ANSWER_S)
        except TimeoutError:
            raise Overloaded(BUSY) from None

    def take(self, message: Expanded) -> None:
        """The engine's answer; one that nobody waits for any more ends the turn all the same."""
        asked = self._asked
        if asked is None or asked.number != message.number:
            return
        self._asked = None
        self._suspects.clear(asked.key[0])
        if not asked.answer.done():
            if message.refused is not None:
                index, rule = message.refused
                asked.answer.set_exception(UnprocessableError(index if 0 <= index < asked.images else None, rule))
            elif len(message.images) == asked.images:
                asked.answer.set_result(message.images)
            else:
                asked.answer.set_exception(UnprocessableError(None, MALFORMED))
        self._turns.release()

    def down(self) -> None:
        """The engine is gone."""
        asked, self._asked = self._asked, None
        if asked is not None:
            self._suspects.blame({asked.key: BLAME}, self._clock())
            if not asked.answer.done():
                asked.answer.set_exception(Loading(ENDED))
            self._turns.release()
