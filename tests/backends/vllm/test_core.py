"""Loading a LoRA adapter into vLLM, which is played: its files must be those that it was given with, before and after vLLM reads them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.adapters import write_adapter

from quintet.backends.vllm import core
from quintet.backends.vllm.values import RejectedError
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
