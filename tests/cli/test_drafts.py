"""``--draft``: which model drafts for which, what it takes, and which are refused."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type
from tests.backends.contract.conftest import ready
from tests.cli.test_cli import quintet
from tests.reference.tiny_model import TinySpec, write_tiny
from tests.support.loading import native_loader
from tests.support.preparing import prepare
from tests.support.report import Notes

from quintet import cli
from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.worker.weights import load_draft, load_weights
from quintet.cli import describe, drafts, engines, fleet
from quintet.cli.console import OptionError
from quintet.errors import ModelError
from quintet.inputs.sequence import SequenceSpec
from quintet.models.gguf import open_model
from quintet.request import Sampling


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, smaller ones, and one of other tokens."""
    folder = tmp_path_factory.mktemp("models")
    write_tiny(folder / "tiny.gguf", TinySpec("tiny"))
    write_tiny(folder / "small.gguf", TinySpec("small", layers=1, seed=2, types=(Type.Q8_0,)))
    write_tiny(folder / "padded.gguf", TinySpec("padded", layers=1, vocab=320))
    write_tiny(folder / "stranger.gguf", TinySpec("stranger", layers=1, thinks=True))
    return folder


def planned(models: Path, *references: str, given: tuple[str, ...] = (), kv_bytes: int = 1 << 24, speculation: bool = True) -> fleet.Fleet:
    engine = engines.EngineOptions(model="", ctx_size=0, threads=1, kv_bytes=kv_bytes, offline=True, speculation=speculation)
    found = [text.replace("@", f"{models}/") for text in references]
    wanted = tuple(text.replace("@", f"{models}/") for text in given)
    return fleet.plan(fleet.FleetOptions(tuple(found), engine, drafts=wanted), Notes())


def test_without_a_name_it_drafts_for_the_first_model_and_with_one_for_that(models: Path) -> None:
    made = planned(models, "@tiny.gguf", "b=@tiny.gguf", "toy", given=("@small.gguf", "b=@padded.gguf"))
    assert [plan.draft for plan in made.plans] == ["small", "padded", ""]
    assert [Path(plan.source.draft).name for plan in made.plans[:2]] == ["small.gguf", "padded.gguf"]
    assert [plan.draft_reference for plan in made.plans] == [f"{models}/small.gguf", f"{models}/padded.gguf", ""], "for other machines"
    own = planned(models, "toy", "@tiny.gguf", given=("tiny=@small.gguf",))
    assert [plan.draft for plan in own.plans] == ["", "small"]


def test_what_is_told_of_slots_knows_whether_tokens_may_be_drafted(models: Path) -> None:
    """With a draft model or by lookup; the toy drafts nothing."""
    assert [one.speculative for one in planned(models, "@small.gguf", "toy", given=()).models] == [True, False]
    assert not planned(models, "@small.gguf", speculation=False).models[0].speculative


def test_the_kv_cache_holds_as_many_tokens_of_both(models: Path) -> None:
    about, small = (describe.describe(open_model(models / f"{name}.gguf")) for name in ("tiny", "small"))
    kv = 100 * PAGE * (about.kv_per_token + small.kv_per_token) + 1
    with_draft = planned(models, "@tiny.gguf", given=("@small.gguf",), kv_bytes=kv)
    assert with_draft.plans[0].kv_tokens == 100 * PAGE
    alone = planned(models, "@tiny.gguf", kv_bytes=kv)
    assert alone.plans[0].kv_tokens > 100 * PAGE
    assert about.weights < with_draft.models[0].weights < about.weights + small.weights, "a draft model takes 4 bits"


@pytest.mark.parametrize(
    ("references", "given", "message"),
    [
        (
            ("@tiny.gguf",),
            ("@stranger.gguf",),
            r"^--draft stranger does not have the vocabulary of tiny: token 26\d is '.*' there and '' here\.$",
        ),
        (("@tiny.gguf",), ("smollm2",), r"^--draft .* does not have the vocabulary of tiny: token \d+ is .* there and .* here\.$"),
        (("@tiny.gguf",), ("x=@small.gguf",), r"^--draft must be \[NAME=\]REFERENCE, NAME one of tiny, got 'x=.*"),
        (("@tiny.gguf",), ("@small.gguf", "@padded.gguf"), "^--draft gives the first model two draft models"),
        (("a=@tiny.gguf",), ("a=@small.gguf", "@padded.gguf"), "^--draft gives 'a', the first model, two draft models"),
        (("a=@tiny.gguf",), ("a=@small.gguf", "a=@padded.gguf"), "^--draft gives 'a' two draft models"),
        (("toy",), ("@small.gguf",), "^--draft: nothing drafts for the toy model"),
        (("@tiny.gguf",), ("toy",), "^--draft: the toy model drafts for nobody"),
        (("@tiny.gguf",), ("@nothing.gguf",), "nothing.gguf"),
    ],
)
def test_what_cannot_draft_is_refused_at_the_start_by_its_name(
    models: Path, references: tuple[str, ...], given: tuple[str, ...], message: str
) -> None:
    with pytest.raises((OptionError, ModelError), match=message):
        planned(models, *references, given=given)


def test_where_nothing_is_drafted_a_draft_model_is_refused(models: Path) -> None:
    with pytest.raises(OptionError, match="--draft needs --speculation auto"):
        planned(models, "@tiny.gguf", given=("@small.gguf",), speculation=False)


def test_the_only_model_takes_one_without_a_name() -> None:
    assert drafts.of_one(()) == ""
    assert drafts.of_one(("a.gguf",)) == "a.gguf"
    with pytest.raises(OptionError, match="--draft must be a model here, without a name before it, got 'b=a.gguf'"):
        drafts.of_one(("b=a.gguf",))


def test_show_tells_what_it_takes(models: Path) -> None:
    small = describe.describe(open_model(models / "small.gguf"))
    shown = quintet("show", f"{models}/tiny.gguf", "--draft", f"{models}/small.gguf", "--ctx-size", "64").stdout
    row = next(line for line in shown.splitlines() if line.startswith("draft model"))
    assert "small.gguf" in row
    assert f"KV cache {describe_size(small.kv_per_token * 64)} for 64 tokens" in shown.replace("\n", " ")


def describe_size(size: int) -> str:
    from quintet.models.files import human

    return human(size)


def test_a_run_prints_the_same_with_and_without_and_keeps_packs_of_both(models: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    here = {"QUINTET_CACHE": str(cache), "QUINTET_PACK_CACHE": "true", "HF_HOME": str(tmp_path)}
    words = ("run", f"{models}/tiny.gguf", "the end", "-n", "24", "--seed", "1", "--kv-cache", "8MiB", "--threads", "1")
    without = quintet(*words, "--no-pack-cache", **here)
    drafted = quintet(*words, "--draft", f"{models}/small.gguf", **here)
    again = quintet(*words, QUINTET_DRAFT=f"{models}/small.gguf", **here)
    assert (without.returncode, drafted.returncode) == (0, 0), drafted.stderr
    assert without.stdout == drafted.stdout == again.stdout
    assert len(list((cache / "packs").iterdir())) == 2


def test_a_file_of_settings_names_it_from_its_own_folder(
    models: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = models / "quintet.toml"
    file.write_text('models = ["./tiny.gguf"]\ndraft = ["./small.gguf", "b=./padded.gguf"]\n')
    monkeypatch.setattr(sys, "argv", ["quintet", "config", "--config", str(file)])
    with pytest.raises(SystemExit):
        cli.main()
    out = capfd.readouterr().out
    assert re.search(rf'"{models}/small.gguf", "b={models}/padded.gguf"', out)


def test_loading_tells_of_both_and_the_models_share_their_threads(models: Path) -> None:
    told: list[float] = []
    loaded = native_loader(models / "tiny.gguf", threads=2, context=64, draft=models / "small.gguf")(told.append)
    assert loaded.draft is not None
    assert told == sorted(told) and told[-1] == pytest.approx(1.0)
    size, more = ((models / f"{name}.gguf").stat().st_size for name in ("tiny", "small"))
    assert any(share == pytest.approx(size / (size + more)) for share in told)
    runner, _ = load_weights(models / "tiny.gguf", threads=2, context=64, isa="", progress=lambda _: None)
    assert load_draft(models / "small.gguf", runner, lambda _: None).cpu is runner.cpu


def test_a_process_of_its_own_drafts_too_and_tells_the_same_fingerprint(models: Path) -> None:
    async def go(make: Callable[[], Engine]) -> tuple[list[int], str]:
        async with ready(make()) as engine:
            prepared = await prepare(engine, [SequenceSpec("the end of", 40, Sampling(1.0, 1.0, 5, ignore_eos=True), None, False)])
            tokens = [event.token async for batch in engine.submit(prepared) for event in batch]
            return tokens, engine.capabilities.fingerprint

    plain = planned(models, "@tiny.gguf").plans[0]
    drafted = planned(models, "@tiny.gguf", given=("@small.gguf",)).plans[0]
    assert asyncio.run(go(drafted.supervise)) == asyncio.run(go(plain.supervise))
