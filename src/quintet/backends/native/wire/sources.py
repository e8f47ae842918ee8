"""What a worker loads: told in its first message, ``Load`` or ``LoadVllm``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quintet.config import CacheFolder, KvType, Quantize, VllmConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Which model a worker in a process of its own loads.

    Args:
        path: of a GGUF file; empty = the toy.
        threads, context, isa, packs, quantize, kv_type, wanted: see ``weights.load_weights``.
        vision: of an mmproj file, or of the folder with the whole model; empty = it sees nothing.
        draft: path of the draft model; empty = there is none.
    """

    path: str
    threads: int
    context: int | None
    name: str
    isa: str = ""
    packs: CacheFolder | None = None
    quantize: Quantize = "q8"
    vision: str = ""
    draft: str = ""
    kv_type: KvType = "f16"
    wanted: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSource:
    """Which model vLLM loads, and how.

    Args:
        path: of a folder.
        context: most tokens of a sequence; 0 = the model's own.
        vision: how it is shown images: ``layout`` = as ``inputs.images.layout`` has it, with the encoder of its folder; ``processor`` = as
            vLLM does it, if vLLM knows how; empty = it is not.
    """

    path: str
    name: str
    context: int
    options: VllmConfig
    vision: Literal["", "layout", "processor"] = ""
