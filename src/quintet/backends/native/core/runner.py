"""``Runner`` over the compiled core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from quintet import _core
from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.types import F32, I32, U8, Batch, Given, Meanwhile, Scores
from quintet.config import KvType
from quintet.models.spec import ModelSpec, RawTensor, Tensors

_NOTHING = Given(np.zeros(0, np.int32), np.zeros((0, 0), np.float32), np.zeros((0, 2), np.int32))


class NativeRunner:
    """``Runner`` over the native extension.

    Args:
        context: most tokens of a sequence.
        wanted: what was asked for in its place, before the memory had a say; LongRoPE goes by it. ``None`` = the same.
        float_activations: for a model whose matrices are all kept floats.
        kv_type: of the keys and values that it keeps.

    Raises:
        ValueError: sizes the kernels cannot take.
    """

    def __init__(
        self,
        spec: ModelSpec,
        context: int,
        cpu: Cpu,
        wanted: int | None = None,
        *,
        float_activations: bool = False,
        kv_type: KvType = "f16",
    ) -> None:
        self.cpu = cpu
        self.kv_type = kv_type
        config = {**_config(spec, context, wanted or context), "float_activations": float_activations, "kv_type": kv_type}
        self._model = _core.Model(config, cpu)
        self._spec = spec
        self._context = context

    @property
    def vocab(self) -> int:
        return self._spec.vocab

    @property
    def context(self) -> int:
        return self._context

    @property
    def window(self) -> int:
        return self._spec.window

    @property
    def hidden(self) -> int:
        """Width of the embedding."""
        return self._spec.hidden

    @property
    def page_bytes(self) -> int:
        return self._model.page_bytes

    @property
    def row_bytes(self) -> int:
        return self._model.row_bytes

    @property
    def weight_bytes(self) -> int:
        """Memory of the packed matrices."""
        return self._model.weight_bytes

    def take(self, tensors: Tensors, progress: Callable[[float], None]) -> None:
        """Pack every tensor; ``progress`` hears shares of 1 by bytes.

        Raises:
            ValueError: a tensor that the model does not have, or lacks.
        """
        total = sum(tensor.size for tensor in tensors.values())
        done = 0
        for name, tensor in tensors.items():
            self.pack(name, tensor)
            done += tensor.size
            progress(done / total)
        self._model.finish()

    def pack(self, name: str, tensor: RawTensor) -> None:
        """Pack one tensor. A runner that is given some of them computes nothing, and ``packed`` has them.

        Raises:
            ValueError: a tensor that the model does not have.
        """
        self._model.set(name, tensor.type, tensor.rows, tensor.cols, tensor.data, tensor.quantize)

    def packed(self, name: str) -> U8:
        """What was made of a tensor: a view, which keeps this runner's memory."""
        return self._model.packed(name)

    def give(self, tensors: Tensors, packed: Mapping[str, U8]) -> None:
        """In place of ``take``: every tensor as it was packed before. Matrices are used where they lie.

        Raises:
            ValueError: a tensor that the model does not have, or lacks, or that is not what its type and shape are packed into.
        """
        for name, tensor in tensors.items():
            if name not in packed:
                raise ValueError(f"tensor '{name}' is missing")
            self._model.give(name, tensor.type, tensor.rows, tensor.cols, packed[name], tensor.quantize)
        self._model.finish()

    def allocate(self, pages: int) -> None:
        self._model.allocate(pages)

    def forward(self, batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
        given = batch.given or _NOTHING
        text = batch.tokens, batch.lengths, batch.starts, batch.tables, batch.rows
        return self._model.forward(*text, given.rows, given.embeddings, given.spans, meanwhile)

    def logits(self, rows: U8) -> F32:
        return self.first_logits(rows, self.vocab)

    def first_logits(self, rows: U8, tokens: int) -> F32:
        return self._model.logits(np.ascontiguousarray(rows), tokens)

    def logits_of(self, rows: U8, tokens: I32) -> F32:
        return self._model.logits_of(np.ascontiguousarray(rows), tokens)

    def score(self, rows: U8, targets: I32, k: int) -> Scores:
        return Scores(*self._model.score(np.ascontiguousarray(rows), targets, k))

    def copy_page(self, source: int, target: int) -> None:
        self._model.copy_page(source, target)

    def read_page(self, page: int) -> U8:
        return self._model.read_page(page)

    def write_page(self, page: int, data: U8) -> None:
        self._model.write_page(page, data)

    def touch_pages(self, first: int, last: int) -> None:
        self._model.touch_pages(first, last)

    def drop_pages(self, pages: Sequence[int]) -> None:
        self._model.drop_pages(np.array(sorted(pages), np.int32))


def rotates_for_short(spec: ModelSpec, wanted: int) -> bool:
    """Whether a model that has LongRoPE's two lists of factors takes the one for short texts, where ``wanted`` tokens were asked for."""
    return any(rope.long_factors and rope.factors_for(wanted) is not rope.long_factors for rope in spec.ropes)


def _config(spec: ModelSpec, context: int, wanted: int) -> dict[str, object]:
    """The spec in the names of csrc/model/config.h."""
    ropes = [{**asdict(rope), "freq_factors": list(rope.factors_for(wanted))} for rope in spec.ropes]
    return {**asdict(spec), "context": context, "ropes": ropes, "layers": [asdict(layer) for layer in spec.layers]}
