"""Our chooser as vLLM's logits processor, for its second model runner. Imported by vLLM, in its workers and where it checks parameters."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext, LogitsProcessor

from quintet.backends.vllm.choose import Row
from quintet.backends.vllm.follow import connect
from quintet.backends.vllm.v1 import raise_chosen
from quintet.backends.vllm.wire import EXTRA, decode_choose


class Choose(LogitsProcessor):  # type: ignore[misc]  # vLLM is not where types are checked
    """Rows are those of a step, which say whose slot they are of; what was generated is known here first, for it was chosen here."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self._chooser = connect(vllm_config.additional_config[EXTRA], req_states.vocab_size)
        self._slots: dict[int, Row] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """A request comes into a slot, maybe again, and whoever had it is gone."""
        if (gone := self._slots.pop(req_idx, None)) is not None:
            self._chooser.leave(gone)
        data = (sampling_params.extra_args or {}).get(EXTRA)
        if data is not None:
            self._slots[req_idx] = self._chooser.enter(decode_choose(data))
        return data is not None

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Of each row of ours whose prompt is computed the chosen token becomes the largest."""
        indexes, rows = [], []
        for index, (slot, position) in enumerate(zip(ctx.expanded_idx_mapping.tolist(), ctx.pos.tolist(), strict=True)):
            row = self._slots.get(slot)
            if row is not None and row.go_back(position + 1):
                indexes.append(index)
                rows.append(row)
        if rows:
            for row, token in zip(rows, raise_chosen(self._chooser, logits, indexes, rows), strict=True):
                row.generated.append(token)
        return logits
