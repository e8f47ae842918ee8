"""``--quantize``: what is done, that it is told, and that it is never passed over in silence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type
from tests.reference.tiny_model import TinySpec, write_tiny
from tests.support.loading import native_loader
from tests.support.report import Notes

from quintet.backends.native.wire import codec
from quintet.backends.native.wire.messages import Load
from quintet.cli import console, engines, fleet
from quintet.cli.app import app
from quintet.config import EngineConfig, Quantize
from quintet.errors import ModelError

FLOATS = TinySpec("floats", types=(Type.BF16, Type.F16))
QUANTISED = TinySpec("quantised", types=(Type.Q8_0,))
MIXED = TinySpec("mixed", types=(Type.F16, Type.Q4_0))
CHOICES: tuple[Quantize, ...] = ("q8", "q4", "none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantize")
    for spec in (FLOATS, QUANTISED, MIXED):
        write_tiny(folder / f"{spec.name}.gguf", spec)
    return folder


def options(path: Path, quantize: Quantize) -> engines.EngineOptions:
    return engines.EngineOptions(model=str(path), ctx_size=64, threads=1, kv_bytes=8 << 20, offline=True, quantize=quantize)


@pytest.mark.parametrize(
    ("quantize", "told"),
    [
        ("q8", "floats: weights in BF16 and F16, quantised to 8 bits on load; --quantize none keeps them"),
        ("q4", "floats: weights in BF16 and F16, quantised to 4 bits on load; --quantize none keeps them"),
        ("none", "floats: weights in BF16 and F16, kept as they are, with float32 activations"),
    ],
)
def test_a_float_model_says_what_becomes_of_it_and_takes_the_memory_that_was_planned(folder: Path, quantize: Quantize, told: str) -> None:
    notes = Notes()
    made = engines.plan(options(folder / "floats.gguf", quantize), notes)
    assert notes.lines == [told]
    assert made.source.quantize == quantize
    runner = native_loader(folder / "floats.gguf", threads=1, quantize=quantize)(lambda _: None).runner
    norms = 4 * FLOATS.hidden * (2 * FLOATS.layers + 1)
    assert made.weights == runner.weight_bytes + norms  # type: ignore[attr-defined]


def test_the_choice_reaches_the_process_that_loads(folder: Path) -> None:
    source = engines.plan(options(folder / "floats.gguf", "none"), Notes()).source
    sent = bytes(codec.encode(Load(source, EngineConfig())))
    (frame,) = codec.Splitter().feed(sent)
    received = codec.decode_to_worker(frame)
    assert isinstance(received, Load)
    assert received.source == source
    with pytest.raises(codec.BadFrameError):
        (frame,) = codec.Splitter().feed(sent.replace(b"none", b"nine"))
        codec.decode_to_worker(frame)


@pytest.mark.parametrize("quantize", ["q8", "none"])
def test_a_quantised_model_stays_what_it_is_and_nothing_is_said(folder: Path, quantize: Quantize) -> None:
    notes = Notes()
    made = engines.plan(options(folder / "quantised.gguf", quantize), notes)
    assert notes.lines == []
    assert made.weights == engines.plan(options(folder / "quantised.gguf", "q8"), Notes()).weights


def test_4_bits_of_a_quantised_model_are_refused_also_as_one_of_several(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"^quantised.gguf: --quantize q4 is for float weights .* but its matrices are Q8_0\.$"):
        engines.plan(options(folder / "quantised.gguf", "q4"), Notes())
    references = (str(folder / "floats.gguf"), f"b={folder / 'quantised.gguf'}")
    with pytest.raises(ModelError, match=r"^b, with .* quantised.gguf: --quantize q4 is for float weights"):
        fleet.plan(fleet.FleetOptions(references, options(folder, "q4")), Notes())
    made = fleet.plan(fleet.FleetOptions(references, options(folder, "none")), Notes())
    assert [one.source.quantize for one in made.plans] == ["none", "none"]


def test_a_mixed_model_is_quantised_where_it_is_floats_and_never_kept(folder: Path) -> None:
    notes = Notes()
    engines.plan(options(folder / "mixed.gguf", "q4"), notes)
    assert notes.lines == ["mixed: weights in F16, quantised to 4 bits on load (Q4_0 as they are)"]
    with pytest.raises(ModelError, match=r"--quantize none needs a model whose matrices are all floats; they are F16 and Q4_0\.$"):
        engines.plan(options(folder / "mixed.gguf", "none"), Notes())


def test_a_toy_has_nothing_to_quantise() -> None:
    toy = replace(options(Path(), "q4"), model=engines.TOY)
    with pytest.raises(ModelError, match=r"^toy: --quantize q4 is for float weights \(F32, F16, BF16\), but it has none\.$"):
        engines.plan(toy, Notes())
    with pytest.raises(console.OptionError, match="^--quantize is nothing to the toy model"):
        app(["serve", "--toy", "--quantize", "none"], standalone_mode=False)


def test_show_tells_the_memory_of_each_choice(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*words: str) -> dict[str, str]:
        assert app(["show", *words, "--ctx-size", "16"], standalone_mode=False) in (None, 0)
        return {line[:13].strip(): line[14:] for line in capsys.readouterr().out.splitlines()}

    rows = shown(str(folder / "floats.gguf"))
    assert [part.split(": ")[0] for part in rows["on load"].split(", ")] == [f"--quantize {name}" for name in CHOICES]
    sizes = dict(part.removeprefix("--quantize ").split(": ") for part in rows["on load"].split(", "))
    for name in CHOICES:
        assert f"weights {sizes[name]}," in shown(str(folder / "floats.gguf"), "--quantize", name)["memory"]
    assert "on load" not in shown(str(folder / "quantised.gguf"))
    assert "none" not in shown(str(folder / "mixed.gguf"))["on load"]


def test_a_run_takes_the_choice_and_the_text_differs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = set()
    for name in CHOICES:
        words = ["run", str(folder / "floats.gguf"), "the end", "-n", "40", "--seed", "1", "--kv-cache", "8MiB", "-t", "1"]
        assert app([*words, "--no-pack-cache", "--quantize", name], standalone_mode=False) in (None, 0)
        out = capsys.readouterr()
        texts.add(out.out)
        assert out.err.startswith("floats: weights in BF16 and F16, ")
    assert len(texts) == 3
