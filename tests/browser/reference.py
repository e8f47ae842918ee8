"""The page of ``/docs``: its notes have room, nothing goes sideways, and what is tried is answered as the server would anybody."""

from __future__ import annotations

import json

import pytest
from access import SIZES, check
from playwright.sync_api import Page

from conftest import PICTURES, URL, Opener, ask, until

LONG_FIELD = "openai.stream_options.include_obfuscation"


def opened(playground: Opener, size: str, *, dark: bool = False) -> Page:
    width, height = SIZES[size]
    page = playground(width=width, height=height, dark=dark).page
    page.goto(f"{URL}/docs")
    page.wait_for_selector("#given:not([hidden])")
    return page


def tried(page: Page, field: str) -> str:
    """Open a field's form and send it; the answer as it is shown."""
    article = page.locator(f'[id="{field}"]')
    article.locator("summary").click()
    article.locator("button.main").click()
    until(page, f"/^[2-5]\\d\\d /.test(document.getElementById('{field}').querySelector('.hint')?.textContent ?? '')")
    found = article.locator("pre").inner_text()
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_goes_sideways_notes_have_room_and_axe_finds_nothing(playground: Opener, size: str, dark: bool) -> None:
    page = opened(playground, size, dark=dark)
    tried(page, "openai.temperature")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    narrowest = page.evaluate("Math.min(...[...document.querySelectorAll('.note')].map(one => one.getBoundingClientRect().width))")
    assert narrowest >= 340
    check(page, "fields")
    PICTURES.mkdir(parents=True, exist_ok=True)
    picture = PICTURES / f"fields-{size}-{'dark' if dark else 'light'}.png"
    page.screenshot(path=picture, animations="disabled")
    assert picture.stat().st_size > 10_000


def test_what_is_tried_is_what_the_server_answers(playground: Opener) -> None:
    page = opened(playground, "wide")
    page.fill("#given input[name=prompt]", "Once upon")
    shown = json.loads(tried(page, "openai.seed"))
    body = json.loads(page.locator('[id="openai.seed"] textarea').input_value())
    assert body["prompt"] == "Once upon"
    assert shown["choices"] == ask("/openai/v1/completions", body)["choices"]


def test_a_refusal_is_shown_as_the_dialect_has_it_and_a_stream_as_it_comes(playground: Opener) -> None:
    page = opened(playground, "wide")
    article = page.locator('[id="together.temperature"]')
    article.locator("summary").click()
    article.locator("textarea").fill('{"prompt": "a", "temperature": "hot"}')
    article.locator("button.main").click()
    until(page, "document.getElementById('together.temperature').querySelector('pre').textContent.includes('temperature')")
    assert article.locator(".hint").inner_text().startswith("400")
    assert tried(page, "openai.stream").startswith("data: {")
    until(page, "document.getElementById('openai.stream').querySelector('pre').textContent.endsWith('data: [DONE]\\n\\n')")
