"""How much work one token is, from the shapes in the model file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gguf import GGUFReader


@dataclass(frozen=True, slots=True)
class Work:
    """Work per token.

    Args:
        bytes: weights that each step reads, as stored in the file: all but experts.
        expert_bytes: of all experts.
        expert_share: how large a part of them a token takes.
        layer_macs: multiply-adds of all layers' matrices; of experts those that a token takes.
        head_macs: multiply-adds of the output matrix, which prefill runs for the last token only.
        attention_macs: multiply-adds of attention, for each token that is attended to; as if no layer had a window.
        kv_bytes: of its keys and values, as floats of 16 bits.
        context: most tokens of a sequence.
    """

    bytes: int
    expert_bytes: int
    expert_share: float
    layer_macs: int
    head_macs: int
    attention_macs: int
    kv_bytes: int
    context: int

    def weights(self, tokens: int) -> float:
        """Bytes that a step of so many tokens reads: an expert once, if any of them takes it, where each takes any as likely."""
        return self.bytes + self.expert_bytes * (1 - (1 - self.expert_share) ** tokens)


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
    experts, dense = ([tensor for tensor in matrices.values() if (len(tensor.shape) == 3) == of_experts] for of_experts in (True, False))
    share = used / count
    return Work(
        bytes=sum(int(tensor.n_bytes) for tensor in (head, *dense)),
        expert_bytes=sum(int(tensor.n_bytes) for tensor in experts),
        expert_share=share,
        layer_macs=sum(int(tensor.n_elements) for tensor in dense) + round(share * sum(int(tensor.n_elements) for tensor in experts)),
        head_macs=int(head.n_elements),
        attention_macs=2 * layers * heads * width,
        kv_bytes=2 * 2 * layers * kv_heads * width,
        context=_number(reader, "context_length", 0),
    )


def _number(reader: GGUFReader, key: str, default: int) -> int:
    """What the file says of its architecture under ``key``."""
    field = reader.fields.get(f"{reader.fields['general.architecture'].contents()}.{key}")
    return int(field.contents()) if field else default
