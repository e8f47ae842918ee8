"""From our options to vLLM's, by their names. Plain code over values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from quintet.backends.native.wire.sources import VllmSource
from quintet.config import EngineConfig
from quintet.errors import ModelError, shorten

OURS = {
    "model": "MODEL",
    "tokenizer": "MODEL",
    "served_model_name": "--served-model-name",
    "max_model_len": "--ctx-size",
    "dtype": "--dtype",
    "quantization": "--quantization",
    "tensor_parallel_size": "--tensor-parallel-size",
    "pipeline_parallel_size": "--pipeline-parallel-size",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache_memory_bytes": "--kv-cache",
    "enable_lora": "--lora or --max-loras",
    "max_loras": "--max-loras",
    "max_cpu_loras": "--max-loras",
    "max_lora_rank": "--max-lora-rank",
}
"""Options of vLLM's that are options of ours."""

KEPT = {
    "logits_processors": "tokens are chosen by Quintet's",
    "additional_config": "Quintet's own goes there",
    "speculative_config": "tokens could not be chosen by Quintet's rules",
    "logprobs_mode": "log-probabilities are the model's own",
    "max_logprobs": "it is the same for every engine",
    "async_scheduling": "a choice needs the tokens before it",
    "skip_tokenizer_init": "text is Quintet's, so it is always on",
    "generation_config": "defaults are the dialects'",
    "override_generation_config": "defaults are the dialects'",
    "disable_log_stats": "health is told by them",
    "runner": "completions are all that is asked of it",
    "stream_interval": "each token is told when it is there",
    "limit_mm_per_prompt": "so many images, and nothing else, may be in a request",
    "mm_processor_cache_gb": "what is kept of images is Quintet's to say",
}
"""Those that are what they must be, and why."""

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM has room made for: ranks of LoRA adapters."""

CPU_KV_BYTES = 1 << 30
"""Of the KV cache on a CPU, unless somebody says more."""

MOST_IMAGES = 30
"""Of a prompt. The front has no dialect that takes more of a request."""

MAX_LOGPROBS = 20
"""As the native engine's."""


def given(arguments: tuple[str, ...]) -> dict[str, Any]:
    """What ``--vllm-arg`` says: names of vLLM's options, with or without dashes, and values in JSON or as text.

    Raises:
        ModelError: not ``NAME=VALUE``, twice the same, or an option that is ours or cannot be another.
    """
    found: dict[str, Any] = {}
    for text in arguments:
        name, equals, value = text.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not equals or not name.isidentifier():
            raise ModelError(f"--vllm-arg must be NAME=VALUE, got {shorten(text)}.")
        if name in found:
            raise ModelError(f"--vllm-arg gives {name} twice.")
        if name in OURS:
            raise ModelError(f"--vllm-arg {name}: use {OURS[name]}.")
        if name in KEPT:
            raise ModelError(f"--vllm-arg {name} cannot be given: {KEPT[name]}.")
        if name == "distributed_executor_backend" and value not in ("mp", "uni"):
            raise ModelError(f"--vllm-arg {name} must be mp or uni: its processes are on this machine, got {shorten(value)}.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def engine_arguments(
    source: VllmSource, config: EngineConfig, sidecar: str, processor: str, *, cpu: bool, sees: Literal["", "layout", "processor"] = ""
) -> dict[str, Any]:
    """Of ``AsyncEngineArgs``.

    Args:
        sidecar: path of the child's socket.
        processor: class that chooses, ``module:name``.
        cpu: vLLM computes on the CPU: without a size it would take a share of all memory for the KV cache.
        sees: how the model is shown images, see ``VllmSource``.

    Raises:
        ModelError: see ``given``; or an option for a processor that is not used.
    """
    options = source.options
    made: dict[str, Any] = {
        "model": source.path,
        "skip_tokenizer_init": not sees,  # its processor of images, whose sizes it is asked for at the start, does not do without
        "max_num_seqs": config.max_running,
        "logits_processors": [processor],
        "additional_config": {"quintet": sidecar},
        "max_logprobs": MAX_LOGPROBS,
        "async_scheduling": False,
        "generation_config": "vllm",
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "tensor_parallel_size": options.tensor_parallel_size,
        "pipeline_parallel_size": options.pipeline_parallel_size,
    }
    own = given(options.vllm_arg)
    if sees:  # they come prepared, so what it keeps of its own preparing would be nothing
        made |= {"limit_mm_per_prompt": {"image": MOST_IMAGES, "video": 0, "audio": 0}, "mm_processor_cache_gb": 0}
    if sees == "layout" and "mm_processor_kwargs" in own:
        raise ModelError("--vllm-arg mm_processor_kwargs cannot be given: this model's images are Quintet's to prepare.")
    if source.context:
        made["max_model_len"] = source.context
    if options.dtype:
        made["dtype"] = options.dtype
    if options.quantization:
        made["quantization"] = options.quantization
    if options.gpu_memory_utilization:
        made["gpu_memory_utilization"] = options.gpu_memory_utilization
    if options.max_loras:  # all that there may be have their place, so that vLLM never reads one again in the middle of a step
        rank = next(one for one in RANKS if one >= options.max_lora_rank)
        made |= {"enable_lora": True, "max_loras": options.max_loras, "max_cpu_loras": options.max_loras, "max_lora_rank": rank}
    if options.kv_bytes or (cpu and not options.gpu_memory_utilization):
        made["kv_cache_memory_bytes"] = options.kv_bytes or CPU_KV_BYTES
    return made | own | ({} if sees else {"language_model_only": True})


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a config.json: the part about text."""
    part = config.get("text_config")
    return part if isinstance(part, Mapping) else config
