"""``--kv-type``: the memory that is planned is what the core takes, and numbers that differ have another fingerprint."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from tests.reference.tiny_model import TinySpec, write_tiny
from tests.support.loading import native_loader
from tests.support.report import Notes

from quintet.backends.native.core.loader import PAGE
from quintet.cli import describe, engines
from quintet.cli.app import app
from quintet.cli.console import OptionError
from quintet.config import KvType
from quintet.models.files import human
from quintet.models.gguf import open_model

TYPES: tuple[KvType, ...] = get_args(KvType)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("kv") / "tiny.gguf", TinySpec("tiny"))


@pytest.mark.parametrize("kv_type", TYPES)
def test_the_kv_cache_of_a_token_is_the_native_cores(tiny: Path, kv_type: KvType) -> None:
    """The figure that ``show`` and the banner compute is what the core really takes."""
    loaded = native_loader(tiny, threads=1, kv_type=kv_type)(lambda share: None)
    about = describe.describe(open_model(tiny), kv_type=kv_type)
    assert about.kv_per_token * PAGE == loaded.runner.page_bytes


def test_8_bits_hold_nearly_twice_the_tokens(tiny: Path) -> None:
    plans = [
        engines.plan(engines.EngineOptions(model=str(tiny), ctx_size=0, threads=1, kv_bytes=1 << 20, offline=True, kv_type=one), Notes())
        for one in TYPES
    ]
    head_dim = open_model(tiny).spec.head_dim
    assert plans[1].kv_tokens / plans[0].kv_tokens == pytest.approx(2 * head_dim / (head_dim + 2), rel=0.02)
    assert [plan.source.kv_type for plan in plans] == ["f16", "q8"]


def test_the_fingerprint_tells_them_apart(tiny: Path) -> None:
    assert len({native_loader(tiny, threads=1, kv_type=one)(lambda share: None).fingerprint for one in TYPES}) == 2


def test_show_tells_what_each_takes(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for one in TYPES:
        app(["show", str(tiny), "--ctx-size", "32", "--kv-type", one, "--offline"], standalone_mode=False)
        kv = describe.describe(open_model(tiny), kv_type=one).kv_per_token * 32
        assert f"KV cache {human(kv)} for 32 tokens" in capsys.readouterr().out.replace("\n", " ")


def test_the_toy_has_no_choice() -> None:
    with pytest.raises(OptionError, match="^--kv-type is nothing to the toy model"):
        app(["serve", "--toy", "--kv-type", "q8"], standalone_mode=False)
