"""Options on their way to vLLM: ours by its names, others as they are, and those refused that are not to be chosen."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from quintet.backends.native.wire.sources import VllmSource
from quintet.backends.vllm.arguments import CPU_KV_BYTES, KEPT, OURS, engine_arguments, given
from quintet.config import EngineConfig, VllmConfig
from quintet.errors import ModelError


def made(options: VllmConfig, *, context: int = 0, cpu: bool = True) -> dict[str, Any]:
    source = VllmSource(path="/models/m", name="m", context=context, options=options)
    return engine_arguments(source, EngineConfig(max_running=7), "/run/sidecar", "room:Class", cpu=cpu)


def seeing(how: Literal["layout", "processor"], *arguments: str) -> dict[str, Any]:
    options = VllmConfig(vllm_arg=arguments)
    return engine_arguments(
        VllmSource(path="/m", name="m", context=0, options=options, vision=how), EngineConfig(), "", "room:Class", cpu=True, sees=how
    )


def test_our_options_have_vllms_names() -> None:
    options = VllmConfig("bfloat16", "fp8", 2, 3, 0.8, 1 << 20, 3, 9, ("enforce-eager=true", "--swap_space=4", "tokenizer_mode=mistral"))
    found = made(options, context=512, cpu=False)
    assert found["model"] == "/models/m"
    assert (found["dtype"], found["quantization"], found["max_model_len"]) == ("bfloat16", "fp8", 512)
    assert (found["tensor_parallel_size"], found["pipeline_parallel_size"], found["gpu_memory_utilization"]) == (2, 3, 0.8)
    assert (found["kv_cache_memory_bytes"], found["max_num_seqs"]) == (1 << 20, 7)
    assert (found["enforce_eager"], found["swap_space"], found["tokenizer_mode"]) == (True, 4, "mistral")
    assert (found["enable_lora"], found["max_loras"], found["max_cpu_loras"], found["max_lora_rank"]) == (True, 3, 3, 16)
    assert found["logits_processors"] == ["room:Class"]
    assert found["additional_config"] == {"quintet": "/run/sidecar"}


def test_what_nobody_asked_for_is_vllms_own() -> None:
    found = made(VllmConfig(), cpu=False)
    assert not found.keys() & {"dtype", "quantization", "max_model_len", "gpu_memory_utilization", "kv_cache_memory_bytes"}


def test_what_is_not_shown_images_is_a_language_model_only() -> None:
    blind = made(VllmConfig())
    assert (blind["language_model_only"], blind["skip_tokenizer_init"]) == (True, True)
    assert made(VllmConfig(vllm_arg=("language_model_only=false",)))["language_model_only"] is True
    for sees in (seeing("layout"), seeing("processor")):
        assert "language_model_only" not in sees
        assert (sees["limit_mm_per_prompt"], sees["skip_tokenizer_init"]) == ({"image": 30, "video": 0, "audio": 0}, False)


def test_only_vllms_own_processor_of_images_takes_options() -> None:
    asked = 'mm_processor_kwargs={"max_pixels": 100352}'
    assert seeing("processor", asked)["mm_processor_kwargs"] == {"max_pixels": 100352}
    with pytest.raises(ModelError, match="mm_processor_kwargs"):
        seeing("layout", asked)


def test_a_cpus_memory_is_not_taken_by_shares_unless_somebody_says_so() -> None:
    assert made(VllmConfig())["kv_cache_memory_bytes"] == CPU_KV_BYTES
    assert "kv_cache_memory_bytes" not in made(VllmConfig(gpu_memory_utilization=0.5))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("enforce_eager", "must be NAME=VALUE, got 'enforce_eager'"),
        ("=1", "must be NAME=VALUE"),
        ("a b=1", "must be NAME=VALUE"),
        ("distributed_executor_backend=ray", "must be mp or uni"),
        *((f"{name}=1", f"{name}: use {ours}") for name, ours in OURS.items()),
        *((f"--{name.replace('_', '-')}=1", f"{name} cannot be given: {why}") for name, why in KEPT.items()),
    ],
)
def test_an_argument_that_cannot_be_is_refused_by_name(text: str, told: str) -> None:
    with pytest.raises(ModelError) as refused:
        given((text,))
    assert told in str(refused.value)


def test_an_argument_is_given_once() -> None:
    with pytest.raises(ModelError, match="gives seed twice"):
        given(("seed=1", "--seed=2"))
