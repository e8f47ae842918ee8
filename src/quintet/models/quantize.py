"""What becomes of a model's float matrices when it is loaded: ``--quantize``.

Quantised matrices stay what they are. With ``q4`` the output matrix has 8 bits: it gains much (``bench/quality/floats.py``), and is a small
part of a large model. With ``none`` activations are floats too, for the whole model: all its matrices must be floats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from quintet.config import Quantize
from quintet.errors import ModelError
from quintet.models.spec import RawTensor, Tensors

FLOATS = frozenset({"F32", "F16", "BF16"})
"""The tensor types that are quantised on load, or kept."""

_PARTS = frozenset({"embed", "output", "q", "k", "v", "o", "gate", "up", "down", "gate_exps", "up_exps", "down_exps"})
_BECOME = {"q8": "quantised to 8 bits on load", "q4": "quantised to 4 bits on load", "none": "kept as they are, with float32 activations"}


def _matrices(tensors: Tensors) -> Mapping[str, RawTensor]:
    """The tensors that are packed; the others (norms, biases, routers) are kept in float32 by any choice."""
    return {name: tensor for name, tensor in tensors.items() if name.rpartition(".")[2] in _PARTS}


def settled(name: str, tensors: Tensors, quantize: Quantize) -> Quantize:
    """``quantize`` as it holds for a model; the default where it makes no difference.

    Raises:
        ModelError: ``q4`` of a model without float matrices, or ``none`` of one with both kinds.
    """
    floats, others = _types(tensors)
    if quantize == "q4" and not floats:
        has = f"its matrices are {' and '.join(others)}" if others else "it has none"
        raise ModelError(f"{name}: --quantize q4 is for float weights (F32, F16, BF16), but {has}.")
    if quantize == "none" and floats and others:
        have = " and ".join([*floats, *others])
        raise ModelError(f"{name}: --quantize none needs a model whose matrices are all floats; they are {have}.")
    return quantize if floats else "q8"


def chosen(tensors: Tensors, quantize: Quantize) -> Tensors:
    """The tensors, each with what becomes of it by a ``settled`` choice."""
    output = "output" if "output" in tensors else "embed"
    packed = _matrices(tensors)
    return {
        name: replace(one, quantize=quantize) if name in packed and (quantize, name) != ("q4", output) else one
        for name, one in tensors.items()
    }


def least(tensors: Tensors) -> Tensors:
    """The tensors for a model of which nobody is told a number: 4 bits where there would be more, but where rows are only looked up."""
    packed = _matrices(tensors)
    spared = "embed" if "output" in tensors else ""
    return {name: replace(one, quantize="least") if name in packed and name != spared else one for name, one in tensors.items()}


def words(tensors: Tensors, quantize: Quantize) -> str:
    """For the user who loads a float model: what its weights are, and what they become; empty for one without float matrices."""
    floats, others = _types(tensors)
    if not floats:
        return ""
    hint = "" if quantize == "none" or others else "; --quantize none keeps them"
    rest = f" ({' and '.join(others)} as they are)" if others else ""
    return f"weights in {' and '.join(floats)}, {_BECOME[quantize]}{rest}{hint}"


def _types(tensors: Tensors) -> tuple[list[str], list[str]]:
    """Float types of its matrices, and other types; most bytes first."""
    sizes: Counter[str] = Counter()
    for tensor in _matrices(tensors).values():
        sizes[tensor.type] += tensor.size
    names = [name for name, _ in sizes.most_common()]
    return [name for name in names if name in FLOATS], [name for name in names if name not in FLOATS]
