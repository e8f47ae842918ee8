"""Writing: typing, completing, stopping, undoing, the alternatives of a token, and going on from one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from conftest import Opener, Playground, ask


def rows(one: Playground) -> list[tuple[str, str]]:
    """The alternatives that are shown: text and percentage."""
    one.page.wait_for_selector(".alternatives ol")
    found = one.page.locator(".alternatives li button").all()
    return [(row.locator(".piece").inner_text(), row.locator(".figure").inner_text()) for row in found]


def started(playground: Opener, **controls: object) -> Playground:
    one = playground()
    one.open()
    one.set(seed=11, max_tokens=24, **controls)
    one.write("The sea was quiet that night, and")
    return one


def imported(one: Playground, folder: Path, tokens: list[list[object]], model: str) -> None:
    """A text of tokens that a model drew."""
    node = {"id": "1", "parent": None, "children": [], "model": model, "tokens": tokens}
    kept = folder / "tree.json"
    kept.write_text(json.dumps({"format": "quintet-tree", "version": 1, "root": "1", "current": "1", "next": 2, "nodes": [node]}))
    one.page.click("#tab-tree")
    one.page.set_input_files("input[type=file]", kept)
    one.page.wait_for_selector("#text .token")


def test_what_is_typed_is_the_text_and_a_completion_follows_it(playground: Opener) -> None:
    one = started(playground)
    made = one.complete()
    expected = ask("/v1/completions", {"prompt": "The sea was quiet that night, and", "max_tokens": 24, "seed": 11})
    assert made == expected["choices"][0]["text"]
    assert one.page.locator("#text .token").count() > 0
    told = one.page.inner_text(".told")
    assert re.search(r"24 tokens · first after \d+ ms · [\d.,]+ tokens/s · prompt 8, \d+ cached · ended: length", told), told


def test_typing_of_every_kind(playground: Opener) -> None:
    one = playground()
    page = one.open()
    page.evaluate("navigator.clipboard")
    one.write("one two three")
    page.keyboard.press("Enter")
    page.keyboard.type("four")
    assert one.text() == "one two three\nfour"
    page.keyboard.press("Home")
    page.keyboard.press("Backspace")
    assert one.text() == "one two threefour"
    page.keyboard.press("Control+Home")
    page.keyboard.press("Control+Delete")
    assert one.text().lstrip() == "two threefour"
    page.keyboard.press("Shift+Control+End")
    page.keyboard.insert_text("a\n\nb")
    assert one.text() == "a\n\nb"
    page.keyboard.press("Control+a")
    page.keyboard.press("Control+x")
    assert one.text() == ""
    for _ in range(2):
        page.keyboard.press("Control+v")
    assert one.text() == "a\n\nba\n\nb"
    page.keyboard.press("ArrowLeft")
    page.keyboard.type("<b>é😀")
    assert one.text() == "a\n\nba\n\n<b>é😀b"
    page.keyboard.press("Backspace")
    assert one.text() == "a\n\nba\n\n<b>éb"


@pytest.mark.parametrize("key", ["Backspace", "Control+Backspace", "Delete"])
def test_a_key_that_deletes_nothing_changes_nothing(playground: Opener, key: str) -> None:
    one = started(playground)
    page = one.page
    page.keyboard.press("Control+Space")  # a fork, of which a change would make one more branch
    one.done()
    page.keyboard.press("Control+End" if key == "Delete" else "Control+Home")
    colours = "all => all.map(one => one.className)"
    before = page.eval_on_selector_all("#text span", colours)
    page.keyboard.press(key)
    page.wait_for_timeout(100)
    assert page.eval_on_selector_all("#text span", colours) == before
    page.click("#tab-tree")
    assert page.locator("[role=treeitem]").count() == 4
    page.click("text=Undo")
    assert page.locator("[role=treeitem]").count() == 1  # the branches were the last step


def test_it_comes_as_a_stream_and_can_be_stopped(playground: Opener) -> None:
    one = started(playground, ignore_eos=True)
    one.set(max_tokens=2000)
    one.page.click("#text")
    one.page.keyboard.press("Control+Enter")
    seen = set()
    for _ in range(20):
        seen.add(one.page.locator("#text .token").count())
        one.page.wait_for_timeout(60)
    one.page.keyboard.press("Escape")
    one.done()
    count = one.page.locator("#text .token").count()
    assert len(seen) > 5
    assert max(seen) <= count < 2000
    assert one.page.locator(".problem").count() == 0  # that was no failure
    one.page.wait_for_timeout(300)
    assert one.page.locator("#text .token").count() == count


def test_it_can_be_stopped_before_the_text_is_tokens(playground: Opener) -> None:
    """As while a model loads that its ids are asked of."""
    one = started(playground)
    one.complete()
    text = one.text()
    one.page.route("**/v1/tokenize", lambda route: None)  # no answer
    one.write(" And")
    one.page.keyboard.press("Control+Enter")
    one.page.wait_for_selector("body[data-busy]")
    one.page.keyboard.press("Escape")
    one.done()
    assert (one.text(), one.page.locator(".problem").count()) == (f"{text} And", 0)


@pytest.mark.parametrize(
    ("dialect", "more"),
    [("openai", {}), ("fireworks", {}), ("fireworks", {"logprobs": "false"}), ("together", {}), ("cerebras", {}), ("novita", {})],
)
def test_a_token_that_a_stop_string_cut_is_text_which_is_gone_on_from(playground: Opener, dialect: str, more: dict[str, str]) -> None:
    """It has no id any more, also where it is the first one: nothing of the answer is lost, and the next request begins with all of it."""
    one = playground()
    one.open()
    one.speak(dialect)
    one.set(seed=11, max_tokens=24, stop='["o"]', **more)
    text = "The sea was quiet that night, and"
    one.write(text)
    for _ in range(2):
        expected = ask("/v1/completions", {"prompt": text, "max_tokens": 24, "seed": 11, "stop": ["o"]}, dialect)["choices"][0]["text"]
        assert expected
        assert one.complete() == expected
        text += expected
    assert one.text() == text


def test_an_answer_in_one_piece_and_without_offsets_is_tokens_too(playground: Opener) -> None:
    one = playground()
    one.open()
    one.speak("together")
    one.set(max_tokens=6, temperature=0, use_beam_search=True)
    one.write("The sea was")
    made = one.complete()
    pieces = one.page.eval_on_selector_all("#text .token", "all => all.map(one => one.textContent)")
    assert ("".join(pieces), len(pieces)) == (made, 6)


def test_a_text_that_ended_is_gone_on_from_as_it_is_seen(playground: Opener) -> None:
    """Not from the token that ended it, which nobody sees and after which another document begins."""
    one = started(playground, logit_bias='{"0": 100}')
    sent: list[object] = []
    one.page.on("request", lambda request: sent.append(json.loads(request.post_data or "{}").get("prompt")))
    assert one.complete() == ""
    assert "1 token" in one.page.inner_text(".told")
    assert one.complete() == ""
    assert sent == [one.text(), one.text()]


def test_what_came_before_a_failure_stays(playground: Opener) -> None:
    one = started(playground)
    text = one.text()
    chunk = {"text": " still", "index": 0, "logprobs": {"token_logprobs": [-0.5], "text_offset": [0]}, "token_ids": [1]}
    frames = [{"choices": [chunk]}, {"error": {"message": "The engine has died."}}]
    body = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames)
    one.page.route("**/openai/v1/completions", lambda route: route.fulfill(status=200, content_type="text/event-stream", body=body))
    one.page.keyboard.press("Control+Enter")
    one.page.wait_for_selector(".problem")
    assert (one.text(), one.problem()) == (f"{text} still", "The engine has died.")


def test_a_connection_that_ends_amid_an_answer_is_told_in_words(playground: Opener) -> None:
    """Browsers say "network error", "Error in input stream" or "Load failed"."""
    one = started(playground)
    text = one.text()
    frame = {"choices": [{"text": " still", "index": 0, "logprobs": {"token_logprobs": [-0.5], "text_offset": [0]}, "token_ids": [1]}]}
    one.page.evaluate("""(frame) => {
        const body = new ReadableStream({start(stream) {
            stream.enqueue(new TextEncoder().encode(frame));
            setTimeout(() => stream.error(new TypeError("network error")), 200);
        }});
        window.fetch = async () => new Response(body);
    }""", f"data: {json.dumps(frame)}\n\n")  # fmt: skip
    one.page.keyboard.press("Control+Enter")
    one.page.wait_for_selector(".problem")
    assert (one.text(), one.problem()) == (f"{text} still", "The stream broke off.")


def test_undo_and_redo_go_over_edits_and_completions(playground: Opener) -> None:
    one = started(playground)
    states = [one.text()]
    one.complete()
    states.append(one.text())
    one.page.keyboard.type(" And more.")
    states.append(one.text())
    one.complete()
    states.append(one.text())
    for state in reversed(states[:-1]):
        one.page.keyboard.press("Control+z")
        assert one.text() == state
    one.page.keyboard.press("Control+z")
    assert one.text() == ""
    one.page.keyboard.press("Control+z")  # nothing is before the beginning
    for state in states:
        one.page.keyboard.press("Control+Shift+z")
        assert one.text() == state


def test_at_the_cursor_what_stands_behind_it_stays_as_a_branch(playground: Opener) -> None:
    one = started(playground)
    whole = one.text()
    for _ in range(4):
        one.page.keyboard.press("ArrowLeft")
    one.page.keyboard.press("Control+Enter")
    one.done()
    head = whole[:-4]
    expected = ask("/v1/completions", {"prompt": head, "max_tokens": 24, "seed": 11})["choices"][0]["text"]
    assert one.text() == head + expected
    one.page.keyboard.press("Alt+ArrowUp")
    assert one.text() == whole


def test_the_ten_likeliest_their_percentages_and_the_entropy_are_the_servers(playground: Opener) -> None:
    one = started(playground)
    one.complete()
    one.page.hover("#text .token >> nth=6")
    shown = rows(one)
    ids = ask("/tokenize", {"prompt": one.text()})["tokens"]
    body = {"prompt": ids[: 8 + 6], "max_tokens": 1, "logprobs": 10, "temperature": 0}
    top = ask("/cerebras/completions", body, "cerebras")["choices"][0]["logprobs"]["top_logprobs"][0]
    logprobs = sorted(top.values(), reverse=True)[:10]
    assert len(shown[:10]) == 10
    for (_, percentage), logprob in zip(shown, logprobs, strict=False):
        told = float(percentage.removesuffix(" %").removeprefix("< "))
        assert abs(told - 100 * np.exp(logprob)) <= max(0.05 if told >= 10 else 0.005, 0.01 if "<" in percentage else 0)
    probabilities = np.exp([*logprobs])
    parts = np.append(probabilities, 1 - probabilities.sum())
    entropy = -(parts * np.log2(parts)).sum()
    words = one.page.inner_text(".alternatives >> text=Entropy")
    assert f"Entropy {entropy:.2f} bits, of these 10 and all others as one" in words


def test_alternatives_are_those_of_the_model_that_is_chosen_now(playground: Opener) -> None:
    one = started(playground)
    one.complete()
    asked: list[str] = []
    one.page.on(
        "request", lambda request: asked.append(json.loads(request.post_data or "")["model"]) if "cerebras" in request.url else None
    )
    for model in ("smollm2", "gap", "smollm2"):
        one.page.select_option(".choices select >> nth=0", model)
        one.page.hover("#text .token >> nth=6")
        rows(one)
        one.page.mouse.move(0, 0)
        one.page.wait_for_selector(".alternatives", state="detached")
    assert asked == ["smollm2", "gap"]  # what is known already is not asked for again


def test_a_token_of_another_model_is_none_of_the_chosen_ones_alternatives(playground: Opener, tmp_path: Path) -> None:
    """Its id means another text there."""
    one = playground()
    page = one.open()
    tokens = [["One", 3725, -1], [" zebra", 7, -9]]
    imported(one, tmp_path, tokens, "another")
    page.hover("#text .token >> nth=1")
    shown = rows(one)
    assert len(shown) == 10
    assert page.locator(".alternatives .chosen").count() == 0
    assert page.inner_text(".alternatives .head .piece") == "␣zebra"


def test_alternatives_go_with_the_text_and_the_model_that_they_are_of(playground: Opener) -> None:
    one = started(playground)
    one.complete()
    page = one.page

    def opened() -> None:
        page.keyboard.press("Control+End")
        page.keyboard.press("Control+.")
        rows(one)

    opened()
    page.select_option(".choices select >> nth=0", "gap")
    page.wait_for_selector(".alternatives", state="detached")
    page.click("#text")
    opened()
    page.click("text=Undo")
    page.wait_for_selector(".alternatives", state="detached")


def test_escape_closes_alternatives_that_could_not_be_had(playground: Opener) -> None:
    one = started(playground)
    one.complete()
    one.page.route("**/cerebras/completions", lambda route: route.fulfill(status=503, body="busy"))
    one.page.keyboard.press("Control+.")
    one.page.wait_for_selector(".alternatives .problem")
    one.page.keyboard.press("Escape")
    one.page.wait_for_selector(".alternatives", state="detached")
    assert one.page.evaluate("document.activeElement.id") == "text"


def test_the_token_that_stands_there_repeats_the_rest_to_the_bit(playground: Opener) -> None:
    one = started(playground)
    made = one.complete()
    shades = one.page.eval_on_selector_all("#text .token", "all => all.map(one => one.className)")
    one.page.hover("#text .token >> nth=4")
    rows(one)
    one.page.click(".alternatives button.chosen")
    one.done()
    head = "The sea was quiet that night, and"
    assert one.text().startswith(head + made)
    again = one.page.eval_on_selector_all("#text .token", "all => all.map(one => one.className)")
    assert again[: len(shades)] == shades


def test_another_token_leads_elsewhere_and_by_keyboard(playground: Opener) -> None:
    one = started(playground)
    made = one.complete()
    one.page.keyboard.press("Control+Home")
    for _ in range(len("The sea was quiet that night, and") + 2):
        one.page.keyboard.press("ArrowRight")
    one.page.keyboard.press("Control+.")
    shown = rows(one)
    assert one.page.evaluate("document.activeElement.closest('.alternatives') !== null")
    chosen = one.page.evaluate("document.activeElement.querySelector('.piece').textContent")
    step = "ArrowDown" if shown[0][0] == chosen else "ArrowUp"
    one.page.keyboard.press(step)
    other = one.page.evaluate("document.activeElement.querySelector('.piece').textContent").replace("␣", " ")
    one.page.keyboard.press("Enter")
    one.done()
    head = "The sea was quiet that night, and"
    assert one.text().startswith(head + other)
    assert not one.text().startswith(head + made)
    one.page.keyboard.press("Alt+ArrowUp")
    assert one.text() == head + made


def test_a_lines_end_has_alternatives_by_keyboard_on_the_empty_line_after_it_too(playground: Opener, tmp_path: Path) -> None:
    one = playground()
    page = one.open()
    imported(one, tmp_path, [["One", 3725, -1], ["\n", 198, -1], ["\n", 198, -2]], "smollm2")
    page.focus("#text")
    page.keyboard.press("Control+End")
    for key in ("End", "ArrowUp"):  # the empty line at the end, and the one that the second line's end makes
        page.keyboard.press(key)
        page.keyboard.press("Control+.")
        assert len(rows(one)) >= 10
        assert page.inner_text(".alternatives .head .figure").startswith("13.5 %")
        page.keyboard.press("Escape")


def test_what_a_model_or_a_user_writes_is_never_markup(playground: Opener) -> None:
    one = playground()
    hostile = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>&lt;b&gt;</div>'
    chunk = '{"choices":[{"text":%s,"index":0,"logprobs":{"tokens":["x"],"token_logprobs":[-0.5],"text_offset":[0]},"token_ids":[1]}]}'
    import json

    def answer(route: object) -> None:
        body = f"data: {chunk % json.dumps(hostile)}\n\ndata: [DONE]\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=body)  # type: ignore[attr-defined]

    page = one.open()
    one.write(hostile)
    page.route("**/openai/v1/completions", answer)
    assert one.complete() == hostile
    assert page.locator("#text img, #text script, #text b, .tree img, .tree script").count() == 0
    assert page.evaluate("window.hit") is None
    assert hostile[:20] in page.inner_text(".tree") or page.locator(".tree").count() == 0
