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
        self._states = req_states
        self._slots: dict[int, Row] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """A request comes into a slot, maybe again, and whoever had it is gone."""
        if (gone := self._slots.pop(req_idx, None)) is not None:
            self._chooser.leave(gone)
        data = (sampling_params.extra_args or {}).get(EXTRA)
        if data is not None:
            choose = decode_choose(data)
            for slot in [slot for slot, row in self._slots.items() if row.choose.key == choose.key]:  # it was preempted, and is here again
                self._chooser.leave(self._slots.pop(slot))
            self._slots[req_idx] = self._chooser.enter(choose)
        return data is not None

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Of each row of ours whose prompt is computed the chosen token becomes the largest."""
        indexes, rows = [], []
        for index, (slot, position) in enumerate(zip(ctx.expanded_idx_mapping.tolist(), ctx.pos.tolist(), strict=True)):
            row = self._slots.get(slot)
            if row is not None and position + 1 > row.position:
                row = self._slots[slot] = self._chooser.enter(row.choose, self._generated(slot, row.choose.start, position))
            if row is not None and row.go_back(position + 1):
                indexes.append(index)
                rows.append(row)
        if rows:
            for row, token in zip(rows, raise_chosen(self._chooser, logits, indexes, rows), strict=True):
                row.generated.append(token)
        return logits

    def _generated(self, slot: int, first: int, last: int) -> list[int]:
        """The tokens at these positions, of a sequence that was preempted for so long that it is not known any more."""
        tokens: list[int] = self._states.all_token_ids.gpu[slot, first : last + 1].tolist()
        return tokens
