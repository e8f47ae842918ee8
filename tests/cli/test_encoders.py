"""Which image encoder a model sees with: the one beside it only if its vocabulary has what stands for images."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.reference.as_gguf import write_gguf
from tests.reference.as_mmproj import write_mmproj
from tests.reference.transformers_vision import models
from tests.support.report import Notes
from tests.support.seeing import SeeingTokenizer

from quintet.cli import encoders
from quintet.cli.engines import EngineOptions, plan
from quintet.cli.plans import Plan
from quintet.errors import ModelError
from quintet.models.opening import open_model

MISSING = {
    "idefics3": "has no <image> and no <fake_token_around_image>.",
    "gemma3": "has no <image_soft_token> and no <start_of_image> and no <end_of_image>.",
}


@pytest.fixture(params=models())
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """As wide as the encoder beside it, and with a vocabulary of bytes, which has no tokens for images."""
    tiny = models()[request.param]
    write_mmproj(tmp_path / "mmproj-model.gguf", tiny)
    return write_gguf(tmp_path / f"{request.param}.gguf", tiny.text())


def planned(model: Path, mmproj: str, notes: Notes) -> Plan:
    return plan(EngineOptions(model=str(model), ctx_size=64, threads=1, kv_bytes=8 << 20, offline=True, mmproj=mmproj), notes)


def test_an_encoder_beside_a_model_without_tokens_for_images_is_left_out_and_the_line_says_why(model: Path) -> None:
    """With it each of the model's texts was refused for images that it did not have."""
    notes = Notes()
    assert planned(model, "", notes).source.vision == ""
    (told,) = [line for line in notes.lines if "mmproj" in line]
    assert told.startswith("mmproj-model.gguf is not used: mmproj-model.gguf: it is for another model than ")
    assert told.endswith(MISSING[model.stem])


def test_one_that_is_named_is_refused(model: Path) -> None:
    with pytest.raises(ModelError, match="is for another model than .*whose vocabulary has no <image"):
        planned(model, str(model.with_name("mmproj-model.gguf")), Notes())


def test_a_model_with_the_tokens_sees_with_what_is_beside_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "load_tokenizer", lambda _: SeeingTokenizer())
    notes, hidden = Notes(), open_model(model).spec.hidden
    path, size = encoders.find_encoder("", model, hidden, "none", notes)
    assert path == str(model.with_name("mmproj-model.gguf")) and size > 0
    assert [line.partition(":")[0] for line in notes.lines] == ["images are taken"]
