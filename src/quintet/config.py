"""Settings as values: each is built once by the CLI and handed only to its one reader."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

Quantize = Literal["q8", "q4", "none"]
"""What becomes of float matrices (F32, F16, BF16) when a model is loaded, see ``models/quantize.py``."""

Reduction = Quantize | Literal["least"]
"""What becomes of a matrix in memory: as above, or 4 bits of whatever would take more."""

KvType = Literal["f16", "q8"]
"""Of keys and values in the KV cache: 16-bit floats, or 8-bit integers with a scale for each token and head."""

EngineName = Literal["auto", "native", "vllm"]
"""What computes; ``auto`` = the native core where it knows the model."""

LOG_LEVELS = ("error", "warning", "info", "debug")

MAX_LOGPROBS = 2_000_000
"""An evaluation's batch fits: 128 prompts of 4,096 tokens, each with one alternative. At this bound the front stays below 500 MB."""


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """Read by ``server/batches.py``.

    Args:
        folder: where files and batches are kept.
        keep: seconds for which they are, unless they say less; 0 = for ever.
        max_file: most bytes of a file.
        max_lines: most requests of a batch.
        max_stored: most bytes of the files of one key.
        chosen: the folder was asked for: without it there is no server.
        waits: another process of the same server may still have the folder.
    """

    folder: Path
    _: KW_ONLY
    keep: float = 30 * 86_400.0
    max_file: int = 200_000_000
    max_lines: int = 50_000
    max_stored: int = 10_000_000_000
    chosen: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Read by ``server/``.

    Args:
        api_keys: accepted keys.
        api_key_file: more of them, see ``keys/file.py``.
        keys: a store of more of them, see ``keys/store.py``; with none of these there is no authentication.
        trusted_proxy: who is believed about a client's address, see ``server/proxies.py``.
        max_body_bytes: larger bodies are refused with 413 before they are read; 10 MB of images in base64 fit.
        dialect: of the paths without a provider's prefix; ``auto`` = by the SDK's ``User-Agent``.
        strict: refuse fields that neither the provider has nor an extension is instead of warning.
        timeout: most seconds from a completion's arrival to its end; 0 = no limit.
        max_per_key: most completions at once per API key; 0 = no limit.
        admin_key: for loading and unloading models; empty = nobody may.
        max_logprobs: most log-probabilities of an answer, see ``inputs/answer_size.py``.
        allowed_hosts: what a request's ``Host`` may name, see ``server/hosts.py``.
        cors_origins: web sites whose pages may send requests, see ``server/cors.py``.
        batches: how files and batches are kept; ``None`` = there are none.
        admin_listener: metrics and administration are only where connections say that they came over the listener ``admin``.
        salt_secret: what the salts of keys' prefixes are made of; empty = a secret of this process.
    """

    api_keys: tuple[str, ...] = ()
    max_body_bytes: int = 12 * 1024 * 1024
    api_key_file: Path | None = None
    dialect: str = "openai"
    strict: bool = False
    timeout: float = 0.0
    max_per_key: int = 0
    admin_key: str = ""
    keys: Path | None = None
    trusted_proxy: tuple[str, ...] = ()
    max_logprobs: int = MAX_LOGPROBS
    allowed_hosts: tuple[str, ...] = ("*",)
    cors_origins: tuple[str, ...] = ()
    admin_listener: bool = False
    batches: BatchConfig | None = None
    salt_secret: bytes = b""


@dataclass(frozen=True, slots=True)
class LedgerConfig:
    """Read by ``ledger/``.

    Args:
        file: where the rows are.
        serve_when_full: serve requests whose row cannot be written now, as long as there is room in memory; else refuse them.
        keep: seconds for which a request has a row of its own; after that it is part of a day's sums. 0 = for ever.
    """

    file: Path
    serve_when_full: bool = False
    keep: float = 0.0


@dataclass(frozen=True, slots=True)
class VllmConfig:
    """Read by ``backends/vllm``; the names are those of vLLM's own options.

    Args:
        dtype, quantization: empty = as the model has it.
        gpu_memory_utilization: share of a device's memory for weights and KV cache; 0 = vLLM's default.
        kv_bytes: of the KV cache; 0 = what the share leaves.
        max_loras: most LoRA adapters at once; 0 = there are none.
        max_lora_rank: the largest rank of any.
        vllm_arg: any other option, ``NAME=VALUE``, the value in JSON or as text.
    """

    dtype: str = ""
    quantization: str = ""
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    gpu_memory_utilization: float = 0.0
    kv_bytes: int = 0
    max_loras: int = 0
    max_lora_rank: int = 0
    vllm_arg: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """Where an engine keeps what it can make again: packed weights, or full pages of the KV cache.

    Args:
        folder: of ours alone.
        limit: most bytes in it.
    """

    folder: str
    limit: int


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Read by ``backends/native/front/engine.py``.

    Args:
        kv_bytes: memory for the KV cache; pages are reserved; those used become resident, and some ahead of them (``worker/headroom.py``).
        batch_tokens: most tokens of one step (decodes and prefill chunks together).
        max_running: most sequences in the batch.
        max_waiting: most sequences in the queue; beyond it requests are refused.
        max_sequences: most sequences of one request (prompts × n).
        speculation: draft tokens where few sequences decode; changes no output.
        prefixes: where prefixes of prompts are kept beside the memory; ``None`` = nowhere.
    """

    kv_bytes: int = 1 << 30
    batch_tokens: int = 256
    max_running: int = 64
    max_waiting: int = 1024
    max_sequences: int = 1024
    speculation: bool = True
    prefixes: CacheFolder | None = None

    @property
    def running_limit(self) -> int:
        """Sequences that run at once: never more than a step has tokens, so that prefill always gets one."""
        return min(self.max_running, self.batch_tokens)

    @property
    def live_limit(self) -> int:
        """Sequences that may be running or waiting at once; beyond it requests are refused."""
        return self.running_limit + self.max_waiting
