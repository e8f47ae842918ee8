"""Which models are served under which names, and what each gets of the memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.reference.tiny_model import TinySpec, write_tiny
from tests.reference.wired_guard import FORM
from tests.support.report import Notes

from quintet import machine
from quintet.cli import console, describe, engines, fleet, plans
from quintet.errors import ModelError
from quintet.models.gguf import open_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TinySpec("tiny"))


def planned(*references: str, kv_bytes: int = 1 << 24, ctx_size: int = 0, pack_bytes: int = 0, **options: Any) -> fleet.Fleet:
    engine = engines.EngineOptions(model="", ctx_size=ctx_size, threads=1, kv_bytes=kv_bytes, offline=True, pack_bytes=pack_bytes)
    return fleet.plan(fleet.FleetOptions(references, engine, **options), Notes())


def test_the_first_model_is_the_default_and_each_has_its_name() -> None:
    made = planned("toy", "second=toy", "org/third=toy")
    assert list(made.names.exact) == [model.name for model in made.models] == ["toy", "second", "org/third"]
    assert made.names.default.model == "toy"


def test_an_engine_is_told_the_name_that_clients_ask_for(tiny: Path) -> None:
    """Not its file's: which model lacks something is told to them."""
    made = planned("toy", f"small={tiny}", str(tiny), names=("gpt-x", "toy"))
    assert [one.source.name for one in made.plans] == ["gpt-x", "small", tiny.stem]


def test_given_names_are_the_first_models_and_take_the_place_of_its_own() -> None:
    made = planned("a=toy", "b=toy", names=("x", "y"), aliases=("z=y", "w=b"))
    assert dict(made.names.exact) == {"x": "x", "y": "x", "b": "b", "z": "x", "w": "b"}


@pytest.mark.parametrize(
    ("reference", "name"), [("./a=b.gguf", "a=b"), ("x=./a=b.gguf", "x"), ("{folder}/a=b.gguf", "a=b"), ("a=b.gguf", "a")]
)
def test_what_begins_like_a_path_is_one_and_else_the_first_equals_sign_ends_a_name(
    reference: str, name: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("a=b.gguf", "b.gguf"):
        (tmp_path / file).symlink_to(tiny)
    monkeypatch.chdir(tmp_path)
    assert planned(reference.format(folder=tmp_path)).models[0].name == name


def test_an_alias_may_hold_equals_signs_and_be_a_pattern() -> None:
    made = planned("toy", aliases=("a=b=toy", "accounts/*=toy"))
    assert made.names.exact["a=b"] == "toy"
    assert made.names.patterns == (("accounts/*", "toy"),)


def test_the_kv_cache_is_split_evenly_and_the_toy_has_its_own(tiny: Path) -> None:
    made = planned(str(tiny), f"second={tiny}", "toy", kv_bytes=1 << 24)
    assert [plan.config.kv_bytes for plan in made.plans] == [1 << 23, 1 << 23, 4 << 20]
    assert [(model.weights > 0, model.kv) for model in made.models] == [(True, 1 << 23), (True, 1 << 23), (False, 4 << 20)]


def test_a_share_that_holds_no_context_is_told_with_the_models_name(tiny: Path) -> None:
    kv = describe.describe(open_model(tiny)).kv_per_token
    assert planned(str(tiny), kv_bytes=kv * 64, ctx_size=64).plans[0].context == 64
    with pytest.raises(ModelError, match=r"^second, with .* as its share: the KV cache holds 32 tokens, fewer than the context of 64"):
        planned("toy", f"second={tiny}", f"third={tiny}", kv_bytes=kv * 64, ctx_size=64)


def test_lazy_models_wait_and_pinned_ones_do_not() -> None:
    made = planned("toy", "b=toy", "c=toy", lazy=True, pins=("alias", "c"), aliases=("alias=b",))
    assert [(model.lazy, model.pinned) for model in made.models] == [(True, False), (False, True), (False, True)]


def test_the_context_of_a_model_is_known_before_it_is_loaded(tiny: Path) -> None:
    kv = describe.describe(open_model(tiny)).kv_per_token
    made = planned("toy", str(tiny), f"less={tiny}", kv_bytes=kv * 64, lazy=True)
    whole = open_model(tiny).spec.context
    assert [one.context for one in planned("toy", str(tiny), lazy=True).models] == [made.models[0].context, whole]
    assert [one.context for one in made.models[1:]] == [32, 32], "as much as its share of the KV cache holds"


def test_what_is_loaded_at_the_start_must_fit_the_machine(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = describe.describe(open_model(tiny)).weights
    monkeypatch.setattr(machine, "memory_total", lambda: (1 << 24) + weights)
    planned(str(tiny), kv_bytes=1 << 24)
    planned(str(tiny), f"b={tiny}", kv_bytes=1 << 24, lazy=True)
    with pytest.raises(console.OptionError, match="--kv-cache and the weights need .*, which is more than this machine's memory"):
        planned(str(tiny), f"b={tiny}", kv_bytes=1 << 24)


def test_weights_that_are_mapped_need_not_fit_the_machine(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_total", lambda: 1 << 24)
    assert all(model.mapped for model in planned(str(tiny), f"b={tiny}", kv_bytes=1 << 24, pack_bytes=1 << 30).models)
    with pytest.raises(console.OptionError, match="--kv-cache and the weights need"):
        planned(str(tiny), f"b={tiny}", kv_bytes=1 << 24)


class NoAhead:
    """Where no process can be started."""

    def take(self, module: Sequence[str]) -> Any:
        raise OSError(12, "Cannot allocate memory")


def test_an_engine_that_clients_load_is_watched_from_its_start_and_the_one_of_the_servers_start_is_its_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "Engine", lambda link, config, *, watched=False: watched)
    (eager,), (lazy,) = (planned("toy", lazy=lazy).begin(NoAhead()).models for lazy in (False, True))  # type: ignore[arg-type]
    served: list[Any] = [eager.start(), eager.start(), lazy.start(), lazy.start()]
    at_a_terminal: Any = planned("toy").models[0].start()
    assert (served, at_a_terminal) == ([False, True, True, True], False)


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), (" 2 m ", 120)])
def test_a_time_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert fleet.parse_seconds(text, "--x") == seconds


@pytest.mark.parametrize("text", ["", "m", "-1", "1d", "1e3", "nan", "inf", "1 2", "\u0661m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(console.OptionError, match="--x must be a number with a unit s, m or h"):
        fleet.parse_seconds(text, "--x")


def test_a_model_is_given_its_role_by_any_of_its_names(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(FORM)
    made = planned("toy", "a=toy", "b=toy", aliases=("llama-guard=a",), moderation=("llama-guard=llama-guard-1", f"b={file}"))
    roles = {model.name: model.moderation.name if model.moderation else None for model in made.models}
    assert roles == {"toy": None, "a": "llama-guard-1", "b": "mine.toml"}


def test_a_format_of_another_family_is_told_by_the_token_that_the_model_lacks(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^a has no token '<\|start_header_id\|>', which the moderation format llama-guard-3 needs\.$"):
        planned("toy", f"a={tiny}", moderation=("a=llama-guard-3",))
    file = tmp_path / "mine.toml"
    file.write_bytes(b'control = ["<|endoftext|>"]' + FORM)
    assert planned(f"a={tiny}", moderation=(f"a={file}",)).models[0].moderation is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("llama-guard-3",), "--moderation must be NAME=FORMAT, got 'llama-guard-3'."),
        (("b=llama-guard-3",), "--moderation must be NAME=FORMAT, NAME one of toy, a, got 'b=llama-guard-3'."),
        (("a=wildguard", "a=shieldgemma"), "--moderation gives the model 'a' two formats."),
        (("a=llama-guard-9",), "--moderation: llama-guard-9 is no format (llama-guard-1, "),
        (("a={folder}",), "--moderation: {folder} is no format ("),
    ],
)
def test_a_role_that_cannot_be_is_told_in_one_line(given: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(console.OptionError) as caught:
        planned("toy", "a=toy", moderation=tuple(text.format(folder=tmp_path) for text in given))
    assert str(caught.value).startswith(message.format(folder=tmp_path))


def test_a_file_that_holds_no_format_is_told_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("safe = 1", encoding="utf-8")
    with pytest.raises(
        console.OptionError, match=r"^--moderation: mine\.toml: prompt is missing; it must be a text with \{prompt\} in it once"
    ):
        planned("toy", moderation=(f"toy={file}",))
