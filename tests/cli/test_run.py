"""How many tokens ``quintet run`` generates where the context is small."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.reference.tiny_model import TinySpec, write_tiny

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TinySpec("tiny")))


def test_who_gives_no_number_gets_what_the_context_leaves(tiny: str, command: Command) -> None:
    for context in (16, 32):
        code, out, err = command("run", tiny, "Hello", "--ctx-size", str(context), "--seed", "7")
        assert (code, out != "") == (0, True)
        prompt, generated = (int(part.split()[0]) for part in err.split(", ")[:2])
        assert prompt > 0 and prompt + generated == context


def test_a_number_that_is_too_much_is_told_by_its_option(tiny: str, command: Command) -> None:
    code, out, err = command("run", tiny, "Hello", "--ctx-size", "16", "-n", "16")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: '--max-tokens' and the ") and err.endswith("must together be at most 16, the context, got 16.\n")
