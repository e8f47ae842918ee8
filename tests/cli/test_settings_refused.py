"""A setting that something else than its own option's type refuses: the file that it is from is told, and the value as it was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("admin-key = ''", ": --admin-key must be printable ASCII without spaces, and not empty."),
        ("api-key = ['a b']", ": --api-key must be printable ASCII without spaces, and not empty."),
        ("trusted-proxy = ['x']", ": --trusted-proxy must be a network such as 10.0.0.0/8, an address, or unix, got 'x'."),
        ("tls-cert = 'x'", ": --tls-cert and --tls-key must be given together."),
        ("tls-key = 'x'", ": --tls-cert and --tls-key must be given together."),
        ("models = ['=x']", ": models: a model is written REFERENCE or NAME=REFERENCE, got '=x'."),
        ("draft = ['=x']", ": draft: a model is written REFERENCE or NAME=REFERENCE, got '=x'."),
        ("lora = ['a b']", ": --lora must be NAME=MODEL:PATH, MODEL the name of a model, got 'a b'."),
    ],
)
def test_whatever_refuses_it_the_file_and_its_own_words_are_told(
    text: str, said: str, command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    file = tmp_path / "quintet.toml"
    file.touch(0o600)
    file.write_text(text, encoding="utf-8")
    for name in ("config", "serve"):
        assert command(name, "--config", str(file)) == (1, "", f"error: {file}{said}\n")


@pytest.mark.parametrize("text", [None, "port = ", "host = '\xe4'"])
def test_a_file_of_settings_that_cannot_be_read_is_told_with_the_variable_that_names_it(
    text: str | None, command: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "quintet.toml"
    if text is not None:
        file.write_text(text, encoding="latin-1")
    code, _, said = command("config", "--config", str(file))
    assert code == 1 and said.startswith(f"error: --config {file}")
    monkeypatch.setenv("QUINTET_CONFIG", str(file))
    assert command("config") == (1, "", said.replace("error: ", "error: QUINTET_CONFIG: "))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--toy", "--threads", "4"], "--threads is nothing to the toy model; leave it out."),
        (["toy", "--dtype", "float32"], "--dtype is nothing to the toy model; leave it out."),
        (["a.gguf", "--engine", "vllm", "--threads", "4"], "--threads is nothing to the vLLM engine; leave it out."),
        (
            ["toy", "a.gguf", "--engine", "native", "--max-loras", "4"],
            "--max-loras is nothing to the native engine and the toy model; leave it out.",
        ),
        (["--toy", "--engine", "vllm"], "--engine vllm is nothing to the toy model, which has no weights; leave it out."),
        (["a=smollm2", "a=toy"], "the name 'a' is given twice; write NAME=REFERENCE to give a model another name."),
        (["smollm2", "smollm2=a.gguf"], "the name 'smollm2' is given twice; write NAME=REFERENCE to give a model another name."),
        (
            ["a.gguf", "b=b.gguf", "--served-model-name", "b"],
            "the name 'b' is given twice; write NAME=REFERENCE to give a model another name.",
        ),
        (["a.gguf", "b=b.gguf", "--alias", "b=b"], "the name 'b' is given twice; write NAME=REFERENCE to give a model another name."),
        (["--toy", "--alias", "gpt=a"], "the alias 'gpt' is for 'a', which is not served here; served: toy."),
        (["--toy", "--pin", "a"], "--pin must be the name of a model, toy, got 'a'."),
    ],
)
def test_what_follows_from_the_settings_alone_is_refused_before_any_model_is_looked_for(
    words: list[str], said: str, command: Callable[..., tuple[int, str, str]]
) -> None:
    for name in ("config", "serve"):
        assert command(name, *words) == (1, "", f"error: {said}\n")


@pytest.mark.parametrize(
    "words", [["a.gguf", "--threads", "4", "--dtype", "float32"], ["a.gguf", "--alias", "b=a", "--pin", "b"], ["--toy", "--pack-cache"]]
)
def test_what_a_models_file_may_tell_is_not_refused_without_it(words: list[str], command: Callable[..., tuple[int, str, str]]) -> None:
    assert command("config", *words)[0] == 0
