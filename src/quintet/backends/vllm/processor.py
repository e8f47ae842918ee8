"""vLLM's own processor of a model's images, for families that are not laid out here: pixels in, what the model takes of them out.

It is asked for the images of a prompt alone, each with vLLM's placeholder for it, so what stands for an image does not depend on the text
around it. What it makes goes to vLLM as it is when the sequence runs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from quintet.backends.vllm.values import Processed, in_one_line
from quintet.inputs.images.expansion import Expansion, ProcessorTraits, UnprocessableError
from quintet.inputs.images.value import PreparedImage

PROBE = 64
"""Pixels of an edge of the image that is tried at the start."""

NOT_TAKEN = "cannot be taken: the model's own processor fails on it"
_log = logging.getLogger(__name__)


class UnseeingError(Exception):
    """Why a model is shown no images."""


def probe(level: int) -> PreparedImage:
    """A grey image that nobody has sent."""
    pixels = bytes([level]) * (PROBE * PROBE * 3)
    return PreparedImage(blake2b(pixels, digest_size=32).digest(), (), (0, 0), (1, PROBE, PROBE), pixels)


class Processor:
    """Blocking, and for one thread at a time.

    Args:
        vllm: its ``VllmConfig``.
        cpu: vLLM computes on the CPU.

    Raises:
        UnseeingError: the model cannot be shown images so.
    """

    def __init__(self, vllm: Any, *, cpu: bool) -> None:
        from vllm.multimodal import MULTIMODAL_REGISTRY

        config = vllm.model_config
        if config.is_encoder_decoder:
            raise UnseeingError("it reads images with an encoder of prompts, beside the prompt")
        if cpu and config.is_mm_prefix_lm:  # there it would compute, and something else
            raise UnseeingError("vLLM's attention on CPUs does not let an image's tokens see each other")
        try:
            self._own: Any = MULTIMODAL_REGISTRY.create_processor(config)
            self._model: Any = MULTIMODAL_REGISTRY._get_model_cls(config)
            most = self._own.info.allowed_mm_limits.get("image", 0)
        except Exception as error:
            raise UnseeingError(f"its processor cannot be loaded: {in_one_line(error)}") from error
        if not most:
            raise UnseeingError("vLLM knows no way to show it any")
        self._before = self._after = 0
        self.most_embeddings = 0
        """Of an image: what vLLM has room for; 0 = not known yet."""
        self.traits = self._tried(most)

    def process(self, images: Sequence[PreparedImage]) -> tuple[Processed, ...]:
        """What becomes of a prompt's images, each whole and with its pixels.

        Raises:
            UnprocessableError: it does not take one of them.
        """
        try:
            made = self._made(images)
        except Exception as error:
            _log.debug("images are not processed", exc_info=error)
            raise UnprocessableError(self._culprit(images), NOT_TAKEN) from None
        for number, one in enumerate(made):
            takes = sum(count for _, count in one.expansion.places)
            if self.most_embeddings and takes > self.most_embeddings:
                most = f"must take at most {self.most_embeddings} tokens, for which vLLM has room"
                raise UnprocessableError(number, f"{most}, but takes {takes}: send a smaller one")
        return made

    def _culprit(self, images: Sequence[PreparedImage]) -> int | None:
        """The one that it does not take by itself."""
        for number, image in enumerate(images):
            try:
                self._made([image])
            except Exception:
                return number
        return None

    def _tried(self, most: int) -> ProcessorTraits:
        """What an image, and two, come to; how much there is around an image's own tokens."""
        try:
            if not self._placeholder(1):
                raise ValueError("vLLM has no placeholder for an image in its prompts")
            out = self._own(self._prompt(1), self._parsed([probe(1)]))
            (own,) = out["mm_placeholders"]["image"]
            self._before, self._after = own.offset, len(out["prompt_token_ids"]) - own.offset - own.length
            one = self._made([probe(1)])[0].expansion
            if most > 1:
                self._made([probe(1), probe(2)])
        except Exception as error:
            raise UnseeingError(f"its processor fails on an image: {in_one_line(error)}") from error
        token = one.tokens[one.places[0][0]]
        tokenizer = self._own.info.get_tokenizer()
        text = tokenizer.convert_ids_to_tokens([token])[0]
        if tokenizer.encode(text, add_special_tokens=False) != [token]:
            raise UnseeingError(f"its token {token} for images is no token in a text")
        return ProcessorTraits(token, text, most)

    def _made(self, images: Sequence[PreparedImage]) -> tuple[Processed, ...]:
        """
        Raises:
            Exception: whatever a processor raises; ``ValueError`` where what it gives is not as vLLM describes it.
        """
        unhashed = {"image": [str(number) for number in range(len(images))]}
        out = self._own(self._prompt(len(images)), self._parsed(images), unhashed)
        tokens, ranges, items = out["prompt_token_ids"], out["mm_placeholders"], out["mm_kwargs"]
        if set(ranges) != {"image"} or len(ranges["image"]) != len(images) or len(items["image"]) != len(images):
            raise ValueError("not an item for each image")
        made, at = [], 0
        for item, own in zip(items["image"], ranges["image"], strict=True):
            end = own.offset + own.length + self._after
            if own.offset != at + self._before or item is None:
                raise ValueError("other tokens between images than around one")
            made.append(self._processed(tuple(tokens[at:end]), at, own, item))
            at = end
        if at != len(tokens):
            raise ValueError("tokens that stand for no image")
        return tuple(made)

    def _processed(self, tokens: tuple[int, ...], at: int, own: Any, item: Any) -> Processed:
        """
        Args:
            tokens: that stand for the image, from ``at`` on.
        """
        from vllm.multimodal.hasher import MultiModalHasher
        from vllm.utils.jsontree import json_iter_leaves

        data = item.get_data()
        places = tuple((first - at, last + 1 - first) for first, last in own.extract_embeds_range())
        name = MultiModalHasher.hash_kwargs(self._own.info.ctx.get_mm_config().mm_hasher_algorithm, **data)
        size = sum(getattr(leaf, "nbytes", 0) for leaf in json_iter_leaves(data))
        return Processed(Expansion(tokens, (self._before, own.length), places), name, item, own.is_embed, size)

    def _prompt(self, images: int) -> list[int]:
        """Nothing but placeholders."""
        encode = self._own.info.get_tokenizer().encode
        return [token for number in range(images) for token in encode(self._placeholder(number + 1), add_special_tokens=False)]

    def _placeholder(self, number: int) -> str:
        """Text of the ``number``-th image's, as prompts for the model have it; of some models only the profile's prompts tell."""
        told = self._model.get_placeholder_str("image", number)
        return told or self._own.dummy_inputs.get_dummy_text({"image": 1}) or ""

    def _parsed(self, images: Sequence[PreparedImage]) -> Any:
        from PIL import Image

        sizes = ((image.shape[2], image.shape[1]) for image in images)
        given = [Image.frombytes("RGB", size, image.pixels) for size, image in zip(sizes, images, strict=True)]
        return self._own.info.parse_mm_data({"image": given})
