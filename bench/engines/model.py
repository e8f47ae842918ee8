"""How much work one token is, from the shapes in the model file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gguf import GGUFReader


@dataclass(frozen=True, slots=True)
class Work:
    """Work per token.

    Args:
        bytes: weights read for one token decoded alone, as stored in the file; of experts those that it takes.
        layer_macs: multiply-adds of all layers' matrices, likewise.
        head_macs: multiply-adds of the output matrix, which prefill runs for the last token only.
        attention_macs: multiply-adds of attention, for each token that is attended to; as if no layer had a window.
        kv_bytes: of its keys and values, as floats of 16 bits.
        context: most tokens of a sequence.
    """

    bytes: int
    layer_macs: int
    head_macs: int
    attention_macs: int
    kv_bytes: int
    context: int


def work(path: Path) -> Work:
    """Work per token of the model in a GGUF file."""
    reader = GGUFReader(path)
    count, used = (_number(reader, key, 1) for key in ("expert_count", "expert_used_count"))
    layers, heads = (_number(reader, key, 0) for key in ("block_count", "attention.head_count"))
    kv_heads = _number(reader, "attention.head_count_kv", heads)
    width = _number(reader, "attention.key_length", _number(reader, "embedding_length", 0) // max(heads, 1))
    matrices = {tensor.name: tensor for tensor in reader.tensors if len(tensor.shape) > 1}
    embedding = matrices.pop("token_embd.weight")
    head = matrices.pop("output.weight", embedding)  # tied: one matrix for both; the embedding is otherwise read one row a token
    shares = {name: used / count if len(tensor.shape) == 3 else 1.0 for name, tensor in matrices.items()}
    return Work(
        bytes=int(head.n_bytes) + round(sum(int(tensor.n_bytes) * shares[name] for name, tensor in matrices.items())),
        layer_macs=round(sum(int(tensor.n_elements) * shares[name] for name, tensor in matrices.items())),
        head_macs=int(head.n_elements),
        attention_macs=2 * layers * heads * width,
        kv_bytes=2 * 2 * layers * kv_heads * width,
        context=_number(reader, "context_length", 0),
    )


def _number(reader: GGUFReader, key: str, default: int) -> int:
    """What the file says of its architecture under ``key``."""
    field = reader.fields.get(f"{reader.fields['general.architecture'].contents()}.{key}")
    return int(field.contents()) if field else default
