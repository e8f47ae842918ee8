"""What a model is sent: its own tokens by their ids, and text for all that was typed or drawn by another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conftest import Opener, Playground, ask

HEAD = "The sky is"
MODEL = ".choices select >> nth=0"


def started(playground: Opener, text: str = HEAD, **controls: object) -> Playground:
    one = playground()
    one.open()
    one.set(**{"seed": 5, "max_tokens": 6, **controls})
    one.page.click("#tab-tree")
    one.write(text)
    return one


def sent(one: Playground) -> list[dict[str, Any]]:
    """The bodies of the completions that the page asks for from now on."""
    found: list[dict[str, Any]] = []
    one.page.on("request", lambda asked: found.append(json.loads(asked.post_data or "")) if asked.url.endswith("/completions") else None)
    return found


def completed(one: Playground, model: str) -> None:
    """Have a model go on at the end of the text."""
    one.page.select_option(MODEL, model)
    one.page.click("#text")
    one.page.keyboard.press("Control+End")
    one.complete()


def test_what_one_model_drew_is_text_to_another_also_after_an_edit_beneath_branches(playground: Opener) -> None:
    """The branch that the edit makes was nobody's, and its ids were sent to anybody."""
    one = started(playground, "The skyy is")
    one.page.keyboard.press("Control+Space")
    one.done()
    one.page.keyboard.press("Control+Home")
    for _ in range(len("The sk")):
        one.page.keyboard.press("ArrowRight")
    one.page.keyboard.press("Delete")
    text = one.text()
    assert text.startswith(HEAD)
    bodies = sent(one)
    completed(one, "gap")
    assert (bodies[-1]["model"], bodies[-1]["prompt"]) == ("gap", text)
    one.page.keyboard.press("Control+z")
    completed(one, "smollm2")
    assert isinstance(bodies[-1]["prompt"], list)  # to its own model they are still what they were


def test_ids_of_a_file_that_are_nobodys_are_sent_to_nobody(playground: Opener, tmp_path: Path) -> None:
    """As trees have them that were kept or exported after such an edit."""
    one = playground()
    page = one.open()
    node = {"id": "1", "parent": None, "children": [], "model": None, "tokens": [["The sky", None, None], [" is", 7, None]]}
    kept = tmp_path / "tree.json"
    kept.write_text(json.dumps({"format": "quintet-tree", "version": 1, "root": "1", "current": "1", "next": 2, "nodes": [node]}))
    page.click("#tab-tree")
    page.set_input_files("input[type=file]", kept)
    one.until_text(HEAD)
    bodies = sent(one)
    completed(one, "smollm2")
    assert bodies[-1]["prompt"] == HEAD


def test_what_is_typed_after_drawn_tokens_is_tokenised_as_text_inside_another(playground: Opener) -> None:
    """Models with SentencePiece's vocabularies were sent a space before it."""
    one = started(playground)
    asked: list[dict[str, Any]] = []
    one.page.on("request", lambda request: asked.append(json.loads(request.post_data or "")) if "tokenize" in request.url else None)
    bodies = sent(one)
    completed(one, "smollm2")
    one.write("ped")
    completed(one, "smollm2")
    assert [(body["prompt"], body["inside"]) for body in asked] == [(HEAD, False), ("ped", True)]
    assert bodies[-1]["prompt"][-1:] == ask("/tokenize", {"prompt": "ped", "inside": True})["tokens"]


def test_with_two_models_in_a_text_each_is_sent_its_own_ids_and_the_same_rest_comes_again(playground: Opener) -> None:
    """All of it was text as soon as another model had drawn a part."""
    one = started(playground)
    completed(one, "gap")
    head = one.text()
    one.set(max_tokens=16, temperature=1.8)
    completed(one, "smollm2")
    whole = one.text()
    bodies = sent(one)
    one.page.hover("#text .token >> nth=14")
    one.page.click(".alternatives button.chosen")
    one.done()
    assert one.text().startswith(whole)
    begin = ask("/tokenize", {"prompt": head})["tokens"]
    assert bodies[-1]["prompt"][: len(begin)] == begin
    assert len(bodies[-1]["prompt"]) == len(begin) + (14 - 6) + 1
