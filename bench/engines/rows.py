"""The rows of the table."""

from __future__ import annotations

from collections.abc import Sequence

from bench.common.install import Store
from bench.common.plan import Plan
from bench.engines.engine_vllm import Vllm
from bench.engines.engines import Engine, LlamaCpp, LlamaServer, OpenVino, Ours, OursServed, XLlamaCpp, XLlamaCppServed
from quintet.config import KvType


def engines(plan: Plan, store: Store, isas: Sequence[str] = ("",), kv_types: Sequence[KvType] = ("f16",), limits: str = "") -> list[Engine]:
    """Every row, in the order in which each round goes through them.

    Args:
        isas: one row of our core for each, with each of ``kv_types``; see ``Ours``, as for ``limits``.
    """
    return [
        *(Ours(plan, store, isa=isa, kv_type=kv_type, limits=limits) for isa in isas for kv_type in kv_types),
        LlamaCpp(plan, store),
        LlamaCpp(plan, store, "Q4_0"),
        XLlamaCpp(plan, store),
        XLlamaCpp(plan, store, "Q4_0"),
        OpenVino(plan, store),
        OpenVino(plan, store, "Q8_0"),
        OpenVino(plan, store, exact=True),
        Vllm(plan, store, "float32"),
        Vllm(plan, store, "bfloat16"),
        OursServed(plan, store),
        LlamaServer(plan, store, "Q4_0"),
        XLlamaCppServed(plan, store, "Q4_0"),
    ]
