"""How much work one token is, from the shapes in the model file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gguf import GGUFReader


@dataclass(frozen=True, slots=True)
class Work:
    """Work per token, without attention.

    Args:
        bytes: weights read for one token decoded alone, as stored in the file.
        layer_macs: multiply-adds of all layers' matrices.
        head_macs: multiply-adds of the output matrix, which prefill runs for the last token only.
    """

    bytes: int
    layer_macs: int
    head_macs: int


def work(path: Path) -> Work:
    """Work per token of the model in a GGUF file."""
    matrices = {tensor.name: tensor for tensor in GGUFReader(path).tensors if len(tensor.shape) == 2}
    embedding = matrices.pop("token_embd.weight")
    head = matrices.pop("output.weight", embedding)  # tied: one matrix for both; the embedding is otherwise read one row a token
    return Work(
        bytes=int(head.n_bytes) + sum(int(tensor.n_bytes) for tensor in matrices.values()),
        layer_macs=sum(int(tensor.n_elements) for tensor in matrices.values()),
        head_macs=int(head.n_elements),
    )
