"""The tree of branches: growing it, walking in it, keeping it, and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Opener, Playground, ask, until

HEAD = "Once upon a time"
DIALECT = ".choices select >> nth=1"
SPEAKS_FIREWORKS = "document.querySelector('pre')?.textContent.includes('/fireworks/')"
SPOIL = """() => new Promise(done => {
    const opening = indexedDB.open('quintet-playground', 1);
    opening.onsuccess = () => {
        const writing = opening.result.transaction('kept', 'readwrite');
        writing.objectStore('kept').put({tree: {format: 'of another time'}}, 'state');
        writing.oncomplete = () => { opening.result.close(); done(); };
    };
})"""

HELD = """(() => {
    const open = IDBFactory.prototype.open, held = [];
    IDBFactory.prototype.open = function(...given) {
        const request = {};
        held.push([this, given, request]);
        return request;
    };
    window.answer = () => held.forEach(([factory, given, request]) => {
        const opening = open.apply(factory, given);
        opening.onsuccess = () => { request.result = opening.result; request.onsuccess(); };
    });
})()"""
"""A browser that says nothing of what it keeps, before ``answer()``."""

PATIENT = """;(() => {
    const later = window.setTimeout;
    window.setTimeout = (act, wait, ...given) => later(act, wait === 3000 ? 600000 : wait, ...given);
})()"""
"""The page waits for that as long as a test takes."""


def grown(playground: Opener) -> Playground:
    one = playground()
    one.open()
    one.set(seed=3, max_tokens=8)
    one.page.click("#tab-tree")
    one.write(HEAD)
    one.page.keyboard.press("Control+Space")
    one.done()
    return one


def test_branches_are_the_samples_of_one_request_and_keys_walk_among_them(playground: Opener) -> None:
    one = grown(playground)
    body = {"prompt": HEAD, "max_tokens": 8, "seed": 3, "n": 3}
    texts = [HEAD + choice["text"] for choice in ask("/v1/completions", body)["choices"]]
    assert one.page.locator("[role=treeitem]").count() == 4
    for text in texts:
        assert one.text() == text
        one.page.keyboard.press("Alt+ArrowDown")
    assert one.text() == texts[2]  # there is no fourth
    one.page.keyboard.press("Alt+ArrowLeft")
    assert one.text() == HEAD
    one.page.keyboard.press("Alt+ArrowRight")
    assert one.text() == texts[2]  # where one came from
    one.page.keyboard.press("Alt+ArrowUp")
    assert one.text() == texts[1]


def test_walking_in_the_panel_itself(playground: Opener) -> None:
    one = grown(playground)
    one.page.click("[role=treeitem] >> nth=1")
    one.page.locator("[role=treeitem][aria-selected=true]").focus()
    first = one.text()
    one.page.keyboard.press("ArrowDown")
    assert one.text() != first
    until(one.page, "document.activeElement.getAttribute('aria-selected') === 'true'")
    one.page.keyboard.press("ArrowLeft")
    assert one.text() == HEAD


def test_bookmarks_and_hoisting(playground: Opener) -> None:
    one = grown(playground)
    one.page.keyboard.press("Alt+ArrowDown")
    text = one.text()
    one.page.keyboard.press("Alt+b")
    one.page.keyboard.press("Alt+ArrowLeft")
    one.page.click(".marks button")
    assert one.text() == text
    one.page.click("#text")
    one.page.keyboard.press("Alt+h")
    assert one.page.locator("[role=treeitem]").count() == 1
    one.page.keyboard.press("Alt+h")
    assert one.page.locator("[role=treeitem]").count() == 4


def test_a_hoist_ends_where_its_button_says_outside_of_it_and_with_its_tree(playground: Opener, tmp_path: Path) -> None:
    one = grown(playground)
    page = one.page
    items = page.locator("[role=treeitem]")
    page.keyboard.press("Control+Space")  # beneath the first branch
    one.done()
    page.keyboard.press("Alt+ArrowLeft")
    page.keyboard.press("Alt+h")
    assert items.count() == 4
    page.keyboard.press("Alt+ArrowRight")
    page.click("text=Whole tree")  # from a child of what is hoisted
    assert items.count() == 7
    page.click("#text")
    page.keyboard.press("Alt+ArrowLeft")
    page.keyboard.press("Alt+h")
    page.keyboard.press("Alt+ArrowLeft")  # out of it
    assert (items.count(), one.text()) == (7, HEAD)
    page.keyboard.press("Alt+ArrowRight")
    page.keyboard.press("Alt+h")
    page.click("text=New")
    one.write("Once more")
    for _ in range(2):
        page.keyboard.press("Control+Space")
        one.done()
    assert items.count() == 7  # nodes of the same ids as before are other nodes


@pytest.mark.parametrize("width", [1280, 390])
def test_what_the_panel_tells_is_whole_and_fits(playground: Opener, width: int) -> None:
    one = playground(width=width)
    page = one.open()
    one.set(seed=3, max_tokens=48, ignore_eos=True)
    page.click("#tab-tree")
    one.write("A list of everything that was in the house:")
    page.keyboard.press("Control+Space")
    one.done()
    page.keyboard.press("Alt+b")
    page.wait_for_selector(".marks button")
    assert page.inner_text(".asked") == "smollm2 · seed 3 · max_tokens 48 · ignore_eos true"
    panel = page.locator("[role=tabpanel]")
    assert panel.evaluate("one => one.scrollWidth <= one.clientWidth")


def test_deleting_takes_what_hangs_on_it_and_undo_brings_it_back(playground: Opener) -> None:
    one = grown(playground)
    one.page.keyboard.press("Control+Space")
    one.done()
    assert one.page.locator("[role=treeitem]").count() == 7
    one.page.keyboard.press("Alt+ArrowLeft")
    one.page.keyboard.press("Alt+Delete")
    assert one.text() == HEAD
    assert one.page.locator("[role=treeitem]").count() == 3
    one.page.keyboard.press("Control+z")
    assert one.page.locator("[role=treeitem]").count() == 7


def test_an_edit_above_a_fork_leaves_the_others_as_they_were(playground: Opener) -> None:
    one = grown(playground)
    texts = []
    for _ in range(3):
        texts.append(one.text())
        one.page.keyboard.press("Alt+ArrowDown")
    one.page.keyboard.press("Control+Home")
    one.page.keyboard.type("Well. ")
    assert one.text() == f"Well. {texts[2]}"
    every = exported(one)
    whole = {"".join(token[0] for node in chain(every, leaf) for token in node["tokens"]) for leaf in leaves(every)}
    assert whole == {*texts, f"Well. {texts[2]}"}


def test_it_is_there_after_a_reload(playground: Opener) -> None:
    one = grown(playground)
    text = one.text()
    one.page.wait_for_timeout(900)
    one.open()
    assert one.text() == text
    assert one.page.locator("[role=treeitem]").count() == 4


def test_what_was_written_last_is_there_after_a_reload_at_once(playground: Opener) -> None:
    one = grown(playground)
    one.page.wait_for_timeout(900)
    one.write(" more")
    one.open()
    assert one.text().endswith(" more")


def test_the_chosen_dialect_is_spoken_after_a_reload_and_the_next(playground: Opener) -> None:
    one = playground()
    page = one.open()
    page.select_option(DIALECT, "fireworks")
    page.click("#tab-code")
    until(page, SPEAKS_FIREWORKS)
    for _ in range(2):
        page.wait_for_timeout(900)
        one.open()
        until(page, SPEAKS_FIREWORKS)
        assert page.input_value(DIALECT) == "fireworks"


def test_a_tab_in_which_nothing_was_changed_keeps_nothing(playground: Opener) -> None:
    one = playground()
    one.open()
    one.write(HEAD)
    one.page.wait_for_timeout(900)
    other = one.context.new_page()
    other.goto(one.url + "/")
    until(other, f"document.querySelector('#text .line')?.textContent === '{HEAD}'")
    other.click("#text")
    other.keyboard.press("Control+End")
    other.keyboard.type(", elsewhere")
    other.wait_for_timeout(900)
    one.page.evaluate("dispatchEvent(new Event('pagehide'))")  # a browser may have ended it before the page can keep anything, or not
    one.page.wait_for_timeout(300)
    one.open()
    assert one.text() == f"{HEAD}, elsewhere"


def test_what_was_kept_and_cannot_be_read_is_told(playground: Opener) -> None:
    one = playground()
    page = one.open()
    page.goto(f"{one.url}/docs")  # of the same origin; the playground has kept what it had to
    page.evaluate(SPOIL)
    one.open()
    assert '"format" must be' in one.problem()
    one.write(HEAD)  # and the page works
    assert one.complete() != ""


def test_a_browser_that_does_not_say_what_it_keeps_keeps_nothing_and_the_page_works(playground: Opener) -> None:
    one = playground()
    one.open()
    one.write(HEAD)
    one.page.wait_for_timeout(900)
    one.page.add_init_script(HELD)
    one.open()
    assert "does not answer" in one.problem()
    one.page.click("text=Dismiss")
    one.write("Another text")
    assert one.complete() != ""
    one.page.evaluate("answer()")
    one.page.wait_for_timeout(900)
    other = one.context.new_page()
    other.goto(one.url + "/")
    until(other, f"document.querySelector('#text .line')?.textContent === '{HEAD}'")  # it was not written over when the answer came


def test_what_is_written_before_the_browser_says_what_it_has_kept_is_a_step_back_from_that(playground: Opener) -> None:
    one = playground()
    page = one.open()
    one.write(HEAD)
    page.wait_for_timeout(900)
    page.add_init_script(HELD + PATIENT)
    page.goto(one.url + "/")
    page.wait_for_selector("#text .line")
    one.write("Another text")
    one.until_text("Another text")
    page.evaluate("answer()")
    one.until_text(HEAD)
    page.keyboard.press("Control+z")
    one.until_text("Another text")
    page.keyboard.press("Control+Shift+z")
    one.until_text(HEAD)


def test_while_a_branch_is_written_no_bookmark_is_a_step_of_its_own(playground: Opener) -> None:
    one = grown(playground)
    one.set(max_tokens=400, ignore_eos=True)
    one.page.click("#tab-tree")
    one.page.click("#text")
    one.page.keyboard.press("Control+Enter")
    until(one.page, "document.querySelectorAll('#text .token').length > 12")
    one.page.keyboard.press("Alt+b")
    one.page.keyboard.press("Escape")
    one.done()
    text = one.text()
    one.page.keyboard.press("Alt+b")
    assert one.page.locator(".marks button").count() == 1
    one.page.keyboard.press("Control+z")
    assert (one.text(), one.page.locator(".marks button").count()) == (text, 0)


def test_a_file_brings_back_every_token_and_its_colour(playground: Opener, tmp_path: Path) -> None:
    one = grown(playground)
    every = exported(one)
    assert (every["format"], every["version"]) == ("quintet-tree", 1)
    path = tmp_path / "tree.json"
    path.write_text(json.dumps(every))
    other = playground()
    other.open()
    other.page.set_input_files("input[type=file]", path)
    other.page.wait_for_selector("[role=treeitem] >> nth=3")
    assert other.text() == one.text()
    assert exported(other) == every
    other.page.click("#text")
    other.page.keyboard.press("Control+z")
    assert other.text() == ""


def test_a_file_that_is_none_is_refused_with_the_reason(playground: Opener, tmp_path: Path) -> None:
    one = grown(playground)
    every = exported(one)
    wrong = {
        "not JSON": ("{", "JSON"),
        "another format": (json.dumps({**every, "format": "x"}), '"format" must be'),
        "no current": (json.dumps({**every, "current": "99"}), '"root" and "current"'),
        "a token of numbers": (json.dumps(changed(every, tokens=[[1, 2, 3]])), "is not [text, id, log-probability]"),
        "an orphan": (json.dumps(changed(every, parent="77")), ""),
        "a circle": (json.dumps(changed(every, children=["1"])), ""),
    }
    text = one.text()
    for name, (content, words) in wrong.items():
        path = tmp_path / f"{name}.json"
        path.write_text(content)
        one.page.set_input_files("input[type=file]", path)
        one.page.wait_for_selector(".problem")
        assert words in one.problem(), name
        assert one.text() == text
        one.page.click("text=Dismiss")


def test_a_file_that_has_been_read_when_a_completion_runs_is_not_taken_and_that_is_told(playground: Opener, tmp_path: Path) -> None:
    """It was shown, and thrown away when nothing came of the completion."""
    one = grown(playground)
    page = one.page
    path = tmp_path / "tree.json"
    path.write_text(json.dumps(exported(one)))
    one.write(", or twice")
    text = one.text()
    page.evaluate("""() => {
        const {text} = Blob.prototype;
        Blob.prototype.text = function() { return new Promise((done) => { window.read = () => done(text.call(this)); }); };
    }""")
    page.set_input_files("input[type=file]", path)
    page.route("**/completions", lambda route: None)  # no answer
    page.click("#text")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("body[data-busy]")
    page.evaluate("read()")
    page.wait_for_selector(".problem")
    page.click(".bar button.main")
    one.done()
    assert (one.text(), "is being written" in one.problem()) == (text, True)


def changed(every: dict, **values: object) -> dict:  # type: ignore[type-arg]
    """With something else in the last node."""
    return {**every, "nodes": [*every["nodes"][:-1], {**every["nodes"][-1], **values}]}


def exported(one: Playground) -> dict:  # type: ignore[type-arg]
    with one.page.expect_download() as download:
        one.page.click("text=Export")
    made = json.loads(Path(download.value.path()).read_text())
    assert isinstance(made, dict)
    return made


def leaves(every: dict) -> list[str]:  # type: ignore[type-arg]
    return [node["id"] for node in every["nodes"] if not node["children"]]


def chain(every: dict, last: str) -> list[dict]:  # type: ignore[type-arg]
    nodes = {node["id"]: node for node in every["nodes"]}
    found = [nodes[last]]
    while found[0]["parent"] is not None:
        found.insert(0, nodes[found[0]["parent"]])
    return found
