"""vLLM's ``AsyncLLM``, which is played: what becomes of its ends, and of LoRA adapters, whose files must be those that they were given
with, before and after vLLM reads them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.adapters import write_adapter

from quintet.backends.vllm import core
from quintet.backends.vllm.values import Asked, CoreDeadError, Output, RejectedError
from quintet.inputs.sequence import Adapter
from quintet.models.folder.adapter import CONFIG, WEIGHTS, digest_of

MODULES = {"model.layers.0.self_attn.q_proj": (8, 6)}


class Engine:
    """Takes every adapter.

    Args:
        meanwhile: what happens while it reads one.
    """

    errored = False

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile
        self.calls: list[str] = []

    async def add_lora(self, adapter: Adapter) -> None:
        self.calls.append(f"add {adapter.id}")
        self._meanwhile()

    async def remove_lora(self, adapter: int) -> None:
        self.calls.append(f"remove {adapter}")


def adapted(folder: Path, digest: str, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None] = lambda: None) -> list[str]:
    """What vLLM is asked for, and "changed" if the adapter is refused for that."""
    monkeypatch.setattr(core, "_lora", lambda adapter: adapter)
    made, engine = core.VllmCore.__new__(core.VllmCore), Engine(meanwhile)
    monkeypatch.setattr(made, "_engine", engine, raising=False)

    async def within() -> None:
        async with asyncio.timeout(60):
            await made.adapt(Adapter(7, str(folder), digest))

    try:
        asyncio.run(within())
    except RejectedError as rejected:
        assert str(rejected) == core.OTHER_ADAPTER
        return [*engine.calls, "changed"]
    return engine.calls


def test_an_adapter_whose_files_are_as_they_were_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_adapter(tmp_path / "a", MODULES)
    assert adapted(folder, digest_of(folder), monkeypatch) == ["add 7"]


def test_one_whose_files_were_replaced_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = write_adapter(tmp_path / "a", MODULES), write_adapter(tmp_path / "b", MODULES, seed=2)
    digest = digest_of(folder)
    shutil.copy(other / WEIGHTS, folder / WEIGHTS)
    assert adapted(folder, digest, monkeypatch) == ["changed"]
    (folder / WEIGHTS).unlink()
    assert adapted(folder, digest, monkeypatch) == ["changed"]
    os.mkfifo(folder / WEIGHTS)
    assert adapted(folder, digest, monkeypatch) == ["changed"]


def test_one_whose_files_are_replaced_while_vllm_reads_them_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_adapter(tmp_path / "a", MODULES)

    def replace() -> None:
        settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        (folder / CONFIG).write_text(json.dumps(settings | {"lora_alpha": 99}), encoding="utf-8")

    assert adapted(folder, digest_of(folder), monkeypatch, replace) == ["add 7", "remove 7", "changed"]


def test_where_the_engine_has_ended_that_is_what_a_place_that_is_to_be_freed_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the request is run again, as any other that an engine takes along."""

    class Ended:
        errored = True

        async def remove_lora(self, adapter: int) -> None:
            raise RuntimeError(f"no engine for {adapter}")

    made = core.VllmCore.__new__(core.VllmCore)
    monkeypatch.setattr(made, "_engine", Ended(), raising=False)
    with pytest.raises(CoreDeadError):
        asyncio.run(made.forget(7))


@pytest.mark.parametrize("before", [1, 0])
@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("length", ""),
        ("stop", ""),
        ("error", "vLLM had an internal error"),
        ("abort", "vLLM called it off"),
        ("raise", "an internal error"),
    ],
)
def test_a_sequence_that_vllm_gives_up_has_not_come_to_its_length_and_is_told_why_if_it_had_begun(
    reason: str, said: str, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ending:
        errored = False

        async def generate(self, *_: object, **__: object) -> AsyncIterator[Any]:
            for token, why in (*((5, None),) * before, (6, reason)):
                if why == "raise":
                    raise ValueError("broken")
                own = SimpleNamespace(token_ids=[token], logprobs=None, finish_reason=why)
                yield SimpleNamespace(outputs=[own], prompt_logprobs=None, metrics=None, finished=why is not None, num_cached_tokens=0)

    error = type("Error", (Exception,), {})
    monkeypatch.setitem(sys.modules, "vllm.exceptions", SimpleNamespace(VLLMClientError=error))
    monkeypatch.setitem(sys.modules, "vllm.inputs", SimpleNamespace(tokens_input=lambda tokens, cache_salt: (tokens, cache_salt)))
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.exceptions", SimpleNamespace(EngineDeadError=error, EngineGenerateError=error))
    for name in ("vllm", "vllm.v1", "vllm.v1.engine"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setattr(core, "_params", lambda _: None)
    made = core.VllmCore.__new__(core.VllmCore)
    monkeypatch.setattr(made, "_engine", Ending(), raising=False)
    outputs: list[Output] = []

    async def run() -> None:
        async for output in made.run(Asked("1", (1, 2), 9, "", None, None, (), b"")):
            outputs.append(output)  # noqa: PERF401  # what came before it raises counts

    if said:
        with pytest.raises(RejectedError) as told:
            asyncio.run(run())
        assert (said in str(told.value)) if before else not str(told.value)
    else:
        asyncio.run(run())
    assert [output.tokens for output in outputs] == [(5,)] * before + [(6,)] * (not said)
