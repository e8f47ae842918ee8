"""Characters that several tokens make, cut by the end of a completion, by an alternative or by the cursor: none is ever lost or torn."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conftest import Opener, Playground, ask

HEAD = "Smile: \U0001f600 \U0001f600"
HALVES = (40303, 218)
"""Of " \U0001f600", in the bundled model's vocabulary."""

BODY: dict[str, Any] = {"temperature": 0, "logit_bias": {str(half): 100 for half in HALVES}}
"""Nothing else is drawn."""


def started(playground: Opener, most: int, text: str = HEAD) -> Playground:
    one = playground()
    one.open()
    one.set(seed=5, max_tokens=most, temperature=0, logit_bias=json.dumps(BODY["logit_bias"]))
    one.page.click("#tab-tree")
    one.page.click("#text")
    one.page.keyboard.insert_text(text)
    return one


def smiles(many: int) -> str:
    """What the server writes at once."""
    text = ask("/v1/completions", {"prompt": HEAD, "max_tokens": 2 * many, **BODY})["choices"][0]["text"]
    assert text == " \U0001f600" * many
    return text  # type: ignore[no-any-return]


def go_on(one: Playground) -> None:
    one.page.click("#text")
    one.page.keyboard.press("Control+End")
    one.page.keyboard.press("Control+Enter")
    one.done()


def pieces(one: Playground) -> list[str]:
    found = one.page.eval_on_selector_all("#text .token", "all => all.map(one => one.textContent)")
    return [str(piece) for piece in found]


@pytest.mark.parametrize("dialect", ["openai", "fireworks", "cerebras", "novita"])
def test_a_character_that_the_end_of_a_completion_cut_is_ended_by_the_next(playground: Opener, dialect: str) -> None:
    one = started(playground, 3)
    one.speak(dialect)
    go_on(one)
    assert one.text() == f"{HEAD}{smiles(1)} \ufffd"
    go_on(one)
    assert one.text() == HEAD + smiles(3)
    assert pieces(one) == [" ", "\U0001f600"] * 3
    one.page.click("#tab-tree")
    assert one.page.locator("[role=treeitem]").count() == 3  # nothing is left beside of the half character
    one.page.click("#text")
    one.page.keyboard.press("Control+z")
    assert one.text() == f"{HEAD}{smiles(1)} \ufffd"


def test_each_branch_ends_the_character_for_itself(playground: Opener) -> None:
    one = started(playground, 3)
    go_on(one)
    one.page.keyboard.press("Control+Space")
    one.done()
    for _ in range(3):
        assert one.text() == HEAD + smiles(3)
        one.page.keyboard.press("Alt+ArrowDown")


@pytest.mark.parametrize("token", [0, 1, 2, 3])
def test_a_click_on_a_part_of_a_character_that_stands_there_gives_the_same_text(playground: Opener, token: int) -> None:
    one = started(playground, 8)
    go_on(one)
    text = one.text()
    assert text == HEAD + smiles(4)
    one.page.hover(f"#text .token >> nth={token}")
    one.page.click(".alternatives button.chosen")
    one.done()
    assert one.text().startswith(text)


def test_before_a_character_the_cursor_stands_before_all_of_its_tokens(playground: Opener) -> None:
    """The first of them shows no more than the space before it."""
    one = started(playground, 8)
    go_on(one)
    prompts: list[list[int]] = []
    one.page.on("request", lambda sent: prompts.append(json.loads(sent.post_data or "{}").get("prompt")))
    one.page.keyboard.press("ArrowLeft")
    one.page.keyboard.press("Control+Enter")
    one.done()
    assert ask("/detokenize", {"tokens": prompts[-1]})["prompt"] == f"{HEAD}{smiles(3)} "
    assert one.text().startswith(f"{HEAD}{smiles(3)} ")
    one.page.keyboard.press("Alt+ArrowUp")
    assert one.text() == HEAD + smiles(4)


def test_a_scored_text_goes_on_from_a_part_of_a_character(playground: Opener) -> None:
    one = started(playground, 4)
    page = one.page
    page.click("nav >> text=Surprise")
    page.fill(".surprise textarea", HEAD)
    page.click("button.main")
    page.wait_for_selector("#perplexity")
    last = len(ask("/tokenize", {"prompt": HEAD})["tokens"]) - 1
    page.hover(f".scored .token >> nth={last}")
    page.click(".alternatives button.chosen")
    one.until_text(HEAD)
    go_on(one)
    assert one.text() == HEAD + smiles(2)
