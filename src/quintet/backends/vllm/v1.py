"""Our chooser as vLLM's logits processor, for its first model runner. Imported by vLLM, in its workers and where it checks parameters."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from quintet.backends.vllm.choose import Chooser, Row
from quintet.backends.vllm.follow import connect
from quintet.backends.vllm.wire import EXTRA, decode_choose

CHOSEN = torch.finfo(torch.float32).max
"""A chosen token's logit, with which it wins wherever the likeliest is taken; log-probabilities were taken before."""


class Choose(LogitsProcessor):  # type: ignore[misc]  # vLLM is not where types are checked
    """Rows are numbered as the batch's requests are; each request of ours carries its ``Choose``."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:  # noqa: ARG002 - vLLM's
        path = vllm_config.additional_config[EXTRA]
        self._chooser: Chooser = connect(path, vllm_config.model_config.get_vocab_size())
        self._rows: dict[int, Row] = {}

    def is_argmax_invariant(self) -> bool:
        """No: it is all about which token is the largest."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Requests left, came and moved, in this order."""
        if batch_update is None:
            return
        rows = self._rows
        for index in batch_update.removed:
            self._leave(rows.pop(index, None))
        for index, params, _, generated in batch_update.added:
            self._leave(rows.pop(index, None))
            data = (params.extra_args or {}).get(EXTRA)
            if data is not None:
                rows[index] = self._chooser.enter(decode_choose(data), generated)
        for source, target, direction in batch_update.moved:
            moved, other = rows.pop(source, None), rows.pop(target, None)
            if moved is not None:
                rows[target] = moved
            if direction is MoveDirectionality.SWAP and other is not None:
                rows[source] = other

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Of each row of ours the chosen token becomes the largest."""
        indexes = sorted(index for index in self._rows if index < len(logits))
        if indexes:
            raise_chosen(self._chooser, logits, indexes, [self._rows[index] for index in indexes])
        return logits

    def _leave(self, row: Row | None) -> None:
        if row is not None:
            self._chooser.leave(row)


def raise_chosen(chooser: Chooser, logits: torch.Tensor, indexes: list[int], rows: list[Row]) -> list[int]:
    """Choose, and make what was chosen the largest, in place. On a CPU the rows are looked at where they lie.

    Args:
        logits: [R, V].
        indexes: which of its rows.

    Returns:
        The tokens, of each row.
    """
    own = logits if len(indexes) == len(logits) else logits[indexes]
    tokens = chooser.draw(own.detach().float().cpu().contiguous().numpy(), rows)
    logits[torch.tensor(indexes, device=logits.device), torch.from_numpy(tokens).to(logits.device, torch.long)] = CHOSEN
    chosen: list[int] = tokens.tolist()
    return chosen
