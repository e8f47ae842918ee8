"""What a text is written with beside the keyboard, and how it is drawn: dragging, characters of several units, texts from right to left."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page

from conftest import Opener, until

# In the first line: the text node and the place in it of a number of characters.
PLACE = """const place = (offset) => {
  for (const span of document.querySelector('#text .line').childNodes) {
    if (offset <= span.textContent.length) return [span.firstChild, offset];
    offset -= span.textContent.length;
  }
};
const middle = (range) => {
  const box = range.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
};"""


def dragged(page: Page, start: int, end: int, to: tuple[float, float] | int) -> None:
    """Drag characters of the first line to another place of it, or to a point of the page."""
    page.evaluate(f"""([start, end]) => {{
        {PLACE}
        document.getSelection().setBaseAndExtent(...place(start), ...place(end));
    }}""", [start, end])  # fmt: skip
    x, y = page.evaluate(f"(() => {{ {PLACE} return middle(document.getSelection().getRangeAt(0)); }})()")
    if isinstance(to, int):
        there = "const range = document.createRange(); range.setStart(...place(to)); range.collapse(true); return middle(range);"
        to = tuple(page.evaluate(f"(to) => {{ {PLACE} {there} }}", to))
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 4, y + 4, steps=3)
    page.mouse.move(*to, steps=10)
    page.mouse.up()


@pytest.mark.parametrize(
    ("to", "expected"), [(22, "alpha gamma deltabeta \nmore"), (0, "beta alpha gamma delta\nmore"), (8, "alpha beta gamma delta\nmore")]
)
def test_what_is_dragged_goes_where_it_is_dropped_in_one_step(playground: Opener, to: int, expected: str) -> None:
    one = playground()
    page = one.open()
    one.write("alpha beta gamma delta\nmore")
    dragged(page, 6, 11, to)
    if expected == "alpha beta gamma delta\nmore":  # onto itself
        page.wait_for_timeout(200)
        assert one.text() == expected
    else:
        one.until_text(expected)
        page.keyboard.press("Control+z")
        one.until_text("alpha beta gamma delta\nmore")


def test_what_is_dragged_to_a_control_is_moved_there(playground: Opener) -> None:
    one = playground()
    page = one.open()
    one.write("alpha beta")
    page.click("#tab-controls")
    box = page.locator("[id=control-stop]").bounding_box()
    assert box is not None
    dragged(page, 0, 6, (box["x"] + 20, box["y"] + 10))
    one.until_text("beta")
    assert page.input_value("[id=control-stop]").strip() == "alpha"


@pytest.mark.parametrize("before", ["", "a"])
def test_a_long_line_is_never_drawn_in_pieces_that_cut_a_character(playground: Opener, before: str) -> None:
    one = playground()
    page = one.open()
    page.click("#text")
    text = before + "😀" * 2500
    page.keyboard.insert_text(text)
    until(page, f"document.querySelector('#text').textContent === {json.dumps(text)}")  # drawn as several lines
    pieces = page.eval_on_selector_all("#text .line", "all => all.map(one => one.textContent)")
    assert len(pieces) > 2
    assert "".join(pieces) == text
    assert all(not 0xD800 <= ord(letter) < 0xE000 for piece in pieces for letter in piece)


def test_each_line_has_the_direction_of_its_own_letters(playground: Opener) -> None:
    """Of Hebrew the sign that ends a sentence is on its left, and the line begins at the right."""
    one = playground()
    page = one.open()
    one.write("\u05e9\u05dc\u05d5\u05dd?\nhello?")
    where = """(line) => {
        const {firstChild} = document.querySelectorAll('#text .line')[line].firstChild;
        const [first, last] = [0, firstChild.length - 1].map((at) => {
            const range = document.createRange();
            range.setStart(firstChild, at);
            range.setEnd(firstChild, at + 1);
            return range.getBoundingClientRect().left;
        });
        return [first, last];
    }"""
    hebrew, english = (page.evaluate(where, line) for line in range(2))
    assert hebrew[1] < hebrew[0]
    assert english[0] < english[1]
    assert english[0] < hebrew[1]
