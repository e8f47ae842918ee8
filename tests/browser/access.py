"""For everybody: accessibility by axe, the keyboard alone, phones, keys; and what the page costs."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import axe_playwright_python
import pytest
from playwright.sync_api import Page, Route

from conftest import TEXT, Opener, until

AXE = Path(axe_playwright_python.__file__).parent / "axe.min.js"  # 4.12.1
AXE_SHA256 = "84494fec757e4710dc751c8d7a636e457f4532f08f85c86dc9070133fbff53bc"
SIZES = {"wide": (1280, 800), "phone": (390, 844)}
MOST_BYTES = 200_000


def check(page: Page, where: str) -> None:
    if not page.evaluate("typeof axe !== 'undefined'"):
        source = AXE.read_bytes()
        assert hashlib.sha256(source).hexdigest() == AXE_SHA256
        page.evaluate(source.decode())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(one => one.violations)")
    told = [(one["id"], one["help"], [node["html"][:160] + node["failureSummary"][:200] for node in one["nodes"][:3]]) for one in found]
    assert told == [], where


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_in_any_view_or_panel(playground: Opener, size: str, dark: bool) -> None:
    width, height = SIZES[size]
    one = playground(width=width, height=height, dark=dark)
    page = one.open()
    check(page, "empty")
    one.set(seed=4, max_tokens=48, logit_bias="{")
    check(page, "controls")
    one.set(temperature=1.6)
    one.write("It was the best of times,\n")
    one.complete()
    one.page.keyboard.press("Control+Space")
    one.done()
    for panel in ("tree", "form", "code"):
        page.click(f"#tab-{panel}")
        if panel == "form":
            page.select_option("#form-kind", "json")
            until(page, "document.querySelector('#form-state').textContent.startsWith('Valid,')")
            check(page, "output, valid")
            page.fill("#form-text", "{")
            page.wait_for_selector("#form-state.wrong")
        page.wait_for_timeout(300)
        check(page, panel)
    page.click("#tab-form")
    page.select_option("#form-kind", "any")
    page.locator("#text .token").nth(5).click()
    page.wait_for_selector(".alternatives ol")
    check(page, "alternatives")
    page.click("nav >> text=Surprise")
    page.fill(".surprise textarea", "It was the best of times.\nIt was the wurst of times, colourless green.")
    page.click("button.main")
    page.wait_for_selector("#perplexity")
    check(page, "surprise")
    page.click("nav >> text=Compare")
    page.select_option("section[aria-label=B] label:has-text('Another control') select", "temperature")
    page.fill("#B-temperature", "0")
    page.keyboard.press("Tab")
    page.click("button.main")
    page.wait_for_selector("#parting")
    check(page, "compare")
    page.click("nav >> text=Fill")
    page.fill("textarea >> nth=1", "after")
    page.click("button.main")
    page.wait_for_selector(".problem")
    check(page, "fill, with a problem")
    page.click("text=Key")
    check(page, "key")


def test_all_of_it_by_keyboard(playground: Opener) -> None:
    """From the top to a re-rolled token, without a mouse; and the focus is always to be seen."""
    one = playground()
    page = one.open()

    def tab_to(name: str) -> None:
        for _ in range(150):
            page.keyboard.press("Tab")
            if name in page.evaluate("(one => [one.getAttribute('aria-label') ?? one.textContent.trim(), one.id])(document.activeElement)"):
                outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none", name
                return
        raise AssertionError(f"{name} is not reached")

    tab_to("Text")
    page.keyboard.type("By keyboard alone")
    page.keyboard.press("Control+Enter")
    one.done()
    page.keyboard.press("Control+Space")
    one.done()
    page.keyboard.press("Control+.")
    page.wait_for_selector(".alternatives li button")
    until(page, "document.activeElement.closest('.alternatives')")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.press("Alt+ArrowDown")
    text = one.text()
    tab_to("tab-tree")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-controls"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    for _ in range(10):
        if page.evaluate("document.activeElement.getAttribute('role')") == "treeitem":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowUp")
    until(page, f"({TEXT}) !== {json.dumps(text)}")
    page.keyboard.press("Shift+Tab")
    tab_to("Surprise")
    page.keyboard.press("Enter")
    page.wait_for_selector(".surprise")


def test_the_button_that_began_is_the_one_that_stops_so_the_focus_stays_and_escape_is_heard(playground: Opener) -> None:
    one = playground()
    page = one.open()
    one.set(seed=4, max_tokens=2000, ignore_eos=True)
    one.write("It was")
    page.click("text=Complete")
    page.wait_for_selector("body[data-busy]")
    page.keyboard.press("Escape")
    one.done()
    assert page.locator("#text .token").count() < 2000
    assert page.evaluate("document.activeElement.textContent").startswith("Complete")
    page.click("nav >> text=Surprise")
    page.fill(".surprise textarea", "It was the best of times.")
    page.focus("button.main")
    page.keyboard.press("Enter")
    page.wait_for_selector("#perplexity")
    one.done()
    assert page.evaluate("document.activeElement.textContent") == "Score"


def test_a_phone_never_scrolls_sideways(playground: Opener) -> None:
    one = playground(width=390, height=844)
    page = one.open()
    one.write("a" * 300 + " https://example.org/" + "b" * 300)
    for view in ("Write", "Surprise", "Compare", "Fill"):
        page.click(f"nav >> text={view}")
        page.wait_for_timeout(150)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
    for panel in ("tree", "controls", "form", "code"):
        page.click(f"#tab-{panel}")
        page.wait_for_timeout(250)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, panel


def test_tokens_are_tapped_on_a_phone(playground: Opener) -> None:
    one = playground(width=390, height=844)
    page = one.open()
    one.set(seed=4)
    one.write("It was")
    page.click("text=Complete")
    one.done()
    page.locator("#text .token").nth(3).click()
    page.wait_for_selector(".alternatives ol")
    box = page.locator(".alternatives").bounding_box()
    assert box is not None
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390


def test_the_key_is_asked_for_where_one_is_needed(playground: Opener) -> None:
    one = playground(url=os.environ["QUINTET_URL_WITH_KEY"])
    page = one.page
    page.goto(one.url + "/")
    page.wait_for_selector("dialog[open]")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector(".problem")
    page.wait_for_selector("dialog[open]")
    assert "wrong API key" in page.inner_text("dialog [role=alert]")  # what is said behind the dialog is neither seen nor read out
    page.keyboard.type("sk-\N{LEFT DOUBLE QUOTATION MARK}pasted\N{RIGHT DOUBLE QUOTATION MARK}")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('dialog [role=alert]').textContent.startsWith('This is no API key')")
    page.wait_for_selector("dialog[open]")
    page.keyboard.type(os.environ["QUINTET_SECRET"])
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.choices select').value !== ''")
    assert page.locator("dialog[open]").count() == 0
    one.write("Hello")
    assert one.complete() != ""
    assert page.evaluate("sessionStorage['quintet.key']") == os.environ["QUINTET_SECRET"]
    assert page.evaluate("Object.keys(localStorage).length") == 0
    page.click("#tab-code")
    page.wait_for_timeout(400)
    code = page.inner_text("pre")
    assert "$QUINTET_API_KEY" in code
    assert os.environ["QUINTET_SECRET"] not in page.content()
    with page.expect_download() as download:
        page.click("#tab-tree")
        page.click("text=Export")
    assert os.environ["QUINTET_SECRET"] not in Path(download.value.path()).read_text()


def test_the_dialog_for_the_key_is_not_closed_by_what_goes_wrong_meanwhile(playground: Opener) -> None:
    one = playground()
    page = one.open()
    held: list[Route] = []
    page.route("**/openai/v1/completions", lambda route: held.append(route))
    one.write("Hello")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("body[data-busy]")
    page.click("text=Key")
    page.wait_for_selector("dialog[open]")
    page.keyboard.type("sk-")
    held[0].fulfill(status=503, body="busy")
    page.wait_for_selector(".problem")
    page.wait_for_timeout(100)
    assert page.locator("dialog[open]").count() == 1


def test_it_is_small_and_there_soon(playground: Opener) -> None:
    one = playground()
    page = one.open()
    page.wait_for_load_state("networkidle")
    kinds = ("resource", "navigation")
    sizes = [size for kind in kinds for size in page.evaluate(f"performance.getEntriesByType('{kind}').map(one => one.transferSize)")]
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    print(f"\ntransferred {sum(sizes):,} bytes in {len(sizes)} requests; first contentful paint after {paint:.0f} ms")
    assert 20_000 < sum(sizes) < MOST_BYTES


def test_nothing_but_its_own_scripts_runs(playground: Opener) -> None:
    one = playground()
    page = one.open()
    told = page.evaluate("""() => new Promise(done => {
        document.addEventListener('securitypolicyviolation', event => done(event.effectiveDirective));
        const script = document.createElement('script'); script.textContent = 'window.hit = 1'; document.body.append(script);
        setTimeout(() => done('nothing'), 1000);
    })""")
    assert re.match("script-src", told)
    assert page.evaluate("window.hit") is None
    one.errors.clear()  # the browser told of what was meant
