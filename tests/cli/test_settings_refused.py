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
