"""Where vLLM's own processor is asked for images, off the child's event loop, and what it makes is kept for the sequences to come."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from quintet.backends.native.wire.messages import Expand, Expanded
from quintet.backends.vllm.values import Processed
from quintet.inputs.images.expansion import UnprocessableError
from quintet.inputs.images.value import PreparedImage

MOST_KEPT = 512 << 20
"""Bytes of what was made of images; what was made last is kept, whatever its size. What is not kept is made again when it is needed."""

Key = tuple[bytes, ...]


class Maker(Protocol):
    """``Processor``, as far as it is needed here."""

    def process(self, images: Sequence[PreparedImage]) -> tuple[Processed, ...]:
        """See ``Processor``."""
        ...


class ImageProcessing:
    """Used on one event loop.

    Args:
        send: tells the front.
    """

    def __init__(self, processor: Maker, send: Callable[[Expanded], None]) -> None:
        self._processor, self._send = processor, send
        self._thread = ThreadPoolExecutor(1, "quintet-images")
        self._kept: OrderedDict[Key, tuple[Processed, ...]] = OrderedDict()  # the one used last at the end
        self._coming: dict[Key, asyncio.Task[tuple[Processed, ...]]] = {}
        self._answers: set[asyncio.Task[None]] = set()

    def expand(self, message: Expand) -> None:
        """Find out, and tell the front."""
        task = asyncio.get_running_loop().create_task(self._answer(message))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    def kept(self, salt: bytes, images: Sequence[PreparedImage]) -> tuple[Processed, ...] | None:
        """What was made of a prompt's images, if it is still there."""
        key = _key(salt, images)
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    async def processed(self, salt: bytes, images: Sequence[PreparedImage]) -> tuple[Processed, ...]:
        """What the processor makes of a prompt's images, once for all who ask for it at a time.

        Args:
            salt: nobody with another one finds it.
            images: with their pixels.

        Raises:
            UnprocessableError: it does not take them.
        """
        if (kept := self.kept(salt, images)) is not None:
            return kept
        key = _key(salt, images)
        if key not in self._coming:
            self._coming[key] = task = asyncio.get_running_loop().create_task(self._make(key, images))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # whoever asked may have gone
        return await asyncio.shield(self._coming[key])

    def close(self) -> None:
        """Nothing more is begun."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _make(self, key: Key, images: Sequence[PreparedImage]) -> tuple[Processed, ...]:
        try:
            made = await asyncio.get_running_loop().run_in_executor(self._thread, self._processor.process, images)
        finally:
            del self._coming[key]
        self._kept[key] = made
        size = sum(map(_size, self._kept.values()))
        while size > MOST_KEPT and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            size -= _size(oldest)
        return made

    async def _answer(self, message: Expand) -> None:
        try:
            made = await self.processed(message.salt, message.images)
        except UnprocessableError as error:
            index = -1 if error.index is None else error.index
            self._send(Expanded(message.number, refused=(index, error.rule)))
        else:
            self._send(Expanded(message.number, tuple(one.expansion for one in made)))


def _size(made: Sequence[Processed]) -> int:
    return sum(processed.size for processed in made)


def _key(salt: bytes, images: Sequence[PreparedImage]) -> Key:
    return salt, *(image.digest for image in images)
