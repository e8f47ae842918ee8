"""A text of 20,000 tokens stays fluid: what a token or a key costs does not grow with the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Opener, Playground

TOKENS = 20_000
STREAMED = 200
MOST_TOUCHED = 4  # nodes for each token that is drawn: its element, its text, and a line now and then

WATCH = """() => {
    window.touched = 0;
    window.frames = [];
    window.long = [];
    new MutationObserver(all => { for (const one of all) window.touched += one.addedNodes.length + one.removedNodes.length; })
        .observe(document.getElementById('text'), {childList: true, subtree: true, characterData: true});
    new PerformanceObserver(all => window.long.push(...all.getEntries().map(one => one.duration))).observe({entryTypes: ['longtask']});
    let last = performance.now();
    const frame = now => { window.frames.push(now - last); last = now; requestAnimationFrame(frame); };
    requestAnimationFrame(frame);
}"""


SENTENCE = "The keeper of the lighthouse counted ships and birds , and wrote each of them down in a long grey book ."
WORDS = SENTENCE.split(" ")


def book(lines: bool) -> list[str]:
    """Texts of so many tokens, with lines or without a single one."""
    texts = [f" {WORDS[k % len(WORDS)]}" for k in range(TOKENS)]
    return [f"{text}\n" if lines and k % 60 == 59 else text for k, text in enumerate(texts)]


def filled(playground: Opener, path: Path, texts: list[str], drawn: bool) -> Playground:
    """With a text that was drawn token by token, or typed."""
    tokens = [[text, 1000 + k % 9973, -(k % 70) / 10] for k, text in enumerate(texts)] if drawn else [["".join(texts), None, None]]
    node = {"id": "1", "parent": None, "children": [], "tokens": tokens, "model": "smollm2" if drawn else None}
    path.write_text(json.dumps({"format": "quintet-tree", "version": 1, "root": "1", "current": "1", "next": 2, "nodes": [node]}))
    one = playground()
    page = one.open()
    one.set(max_tokens=STREAMED, seed=2, truncate_prompt_tokens=256, ignore_eos=True)
    page.click("#tab-tree")
    page.set_input_files("input[type=file]", path)
    page.wait_for_selector("#text .line >> nth=10")
    page.focus("#text")
    page.keyboard.press("Control+End")
    return one


def figures(one: Playground, what: str) -> None:
    frames, long = one.page.evaluate("[window.frames, window.long]")
    frames = sorted(frames[2:])
    middle, high = frames[len(frames) // 2], frames[int(len(frames) * 0.99)]
    print(f"\n{what}: {len(frames)} frames, median {middle:.1f} ms, 99th percentile {high:.1f} ms; {len(long)} tasks over 50 ms", end="")


@pytest.mark.parametrize(("lines", "drawn"), [(True, True), (False, True), (False, False)], ids=["lines", "a paragraph", "typed"])
def test_streaming_at_the_end_of_a_long_text(playground: Opener, tmp_path: Path, lines: bool, drawn: bool) -> None:
    one = filled(playground, tmp_path / "tree.json", book(lines), drawn)
    before = one.page.locator("#text .token").count()
    one.page.evaluate(WATCH)
    one.page.keyboard.press("Control+Enter")
    one.done()
    touched = one.page.evaluate("window.touched")
    more = one.page.locator("#text .token").count() - before
    figures(one, f"streaming {more} tokens after {before:,} elements")
    assert more >= STREAMED * 0.9
    assert touched <= MOST_TOUCHED * more + 700  # a block is at most 300 pieces, and drawn again when it is full


def test_typing_in_the_midst_of_a_long_text(playground: Opener, tmp_path: Path) -> None:
    one = filled(playground, tmp_path / "tree.json", book(lines=True), drawn=True)
    page = one.page
    page.keyboard.press("Control+Home")
    for _ in range(30):
        page.keyboard.press("ArrowDown")
    page.keyboard.type("x")  # from here on nothing has a probability any more, and loses its colour, once
    page.evaluate(WATCH)
    page.keyboard.type("and then nothing was said for a while")
    page.wait_for_timeout(200)
    figures(one, f"typing 37 characters among {page.locator('#text span').count():,} elements")
    assert "xand then nothing was said for a while" in one.text()
    assert page.evaluate("window.touched") <= 37 * 2 * 65  # its line, of 60 tokens, and nothing else
    page.keyboard.press("Control+a")
    page.keyboard.type("y")
    assert one.text() == "y"


def test_blocks_are_small_and_laid_out_when_they_are_in_sight(playground: Opener, tmp_path: Path) -> None:
    one = filled(playground, tmp_path / "tree.json", book(lines=False), drawn=False)
    sizes = one.page.eval_on_selector_all("#text .line", "all => all.map(one => one.textContent.length)")
    assert len(sizes) > 30
    assert max(sizes) <= 2000
    assert "".join(book(lines=False)) == one.text().replace("\n", "")
    assert one.page.evaluate("getComputedStyle(document.querySelector('#text .line')).contentVisibility") == "auto"
