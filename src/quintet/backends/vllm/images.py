"""Images for vLLM: what its own processors would have made of them, out of the pixels that our front has decoded and cut.

So no client's file is decoded in its processes, and a prompt's tokens, places and offsets are those of the other engines. It takes a family
whose processor ours is (``inputs.images.layout``); those of others are shown images by vLLM's own (``processor``,
``inputs.images.expansion``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quintet.backends.native.wire.messages import Pixels, Wanted
from quintet.backends.native.wire.sources import VllmSource
from quintet.backends.vllm.arguments import text_config
from quintet.inputs.images.layout import ImageTraits
from quintet.inputs.images.value import PreparedImage
from quintet.models.folder.documents import read_document
from quintet.models.folder.files import CONFIG
from quintet.models.folder.kinds import left_out
from quintet.models.opening import open_vision
from quintet.models.vision.spec import VisionSpec

F32 = npt.NDArray[np.float32]
WHITE = 255.0
_log = logging.getLogger(__name__)


class Sight:
    """How the model of a folder is shown images.

    Raises:
        ModelError: not all of its encoder is understood.
    """

    def __init__(self, folder: Path) -> None:
        file = open_vision(folder, hidden_size(folder))
        file.forget()
        self.spec: VisionSpec = file.spec

    @property
    def traits(self) -> ImageTraits:
        """For the front."""
        return ImageTraits(self.spec.projector, self.spec.image, self.spec.longest_edge, self.spec.tokens)

    @property
    def both_ways(self) -> bool:
        """An image's tokens see those after them, which vLLM does not compute everywhere."""
        return self.spec.projector == "gemma3"


def sight_of(source: VllmSource, *, cpu: bool) -> Sight | None:
    """How a model is shown images; ``None`` = it is not.

    Args:
        cpu: vLLM computes on the CPU.

    Raises:
        ModelError: not all of its encoder is understood.
    """
    if source.vision != "layout":
        return None
    sight = Sight(Path(source.path))
    if cpu and sight.both_ways:  # there it would compute, and something else
        _log.warning("%s takes no images: vLLM's attention on CPUs does not let an image's tokens see each other", source.name)
        return None
    return sight


def hidden_size(folder: Path) -> int:
    """Of the folder's language model; 0 = it is not told."""
    config = read_document(folder / CONFIG)
    found = {**left_out(config), **text_config(config)}.get("hidden_size")
    return found if isinstance(found, int) else 0


def normalised(image: PreparedImage, spec: VisionSpec) -> F32:
    """Its tiles as an encoder takes them, float32 [tiles, 3, height, width]."""
    pixels = np.frombuffer(image.pixels, np.uint8).reshape(*image.shape, 3).transpose(0, 3, 1, 2)
    mean, std = (np.array(one, np.float32)[:, None, None] for one in (spec.mean, spec.std))
    found: F32 = np.ascontiguousarray((pixels.astype(np.float32) / WHITE - mean) / std, np.float32)
    return found


def taken(image: PreparedImage) -> tuple[int, npt.NDArray[np.bool_]]:
    """The first of its places, and from there to the last: which tokens are places."""
    start = image.places[0][0]
    mask = np.zeros(sum(image.places[-1]) - start, np.bool_)
    for first, count in image.places:
        mask[first - start : first - start + count] = True
    return start, mask


def salted(content: bytes, salt: str) -> str:
    """An image's name in vLLM's caches, which nobody with another salt shares.

    Args:
        content: equal ones mean equal rows of embeddings.
        salt: as of ``Asked``.
    """
    return blake2b(content, digest_size=16, key=bytes.fromhex(salt)).hexdigest()


class Pictures:
    """The pixels of requests' images: asked for when a sequence is about to enter vLLM, and kept until none of its request needs them.

    Used on one event loop.
    """

    def __init__(self, ask: Callable[[Wanted], None]) -> None:
        self._ask = ask
        self._coming: dict[tuple[int, bytes], asyncio.Future[bytes]] = {}
        self._users: Counter[tuple[int, bytes]] = Counter()

    def take(self, message: Pixels) -> None:
        """What was asked for has come."""
        for (_, digest), pixels in self._coming.items():
            if digest == message.digest and not pixels.done():
                pixels.set_result(message.pixels)

    @contextlib.asynccontextmanager
    async def held(self, request_id: int, images: tuple[PreparedImage, ...]) -> AsyncIterator[tuple[PreparedImage, ...]]:
        """The images with their pixels, as long as a sequence needs them."""
        keys = {(request_id, image.digest) for image in images}
        for key in keys:
            self._users[key] += 1
            if key not in self._coming:
                self._coming[key] = asyncio.get_running_loop().create_future()
                self._ask(Wanted(*key))
        try:
            yield tuple([replace(image, pixels=await asyncio.shield(self._coming[request_id, image.digest])) for image in images])
        finally:
            for key in keys:
                self._users[key] -= 1
                if not self._users[key]:
                    del self._users[key], self._coming[key]
