"""The page of ``/docs``: its notes have room, nothing goes sideways, and what is tried is answered as the server would anybody."""

from __future__ import annotations

import json

import pytest
from access import SIZES, check
from playwright.sync_api import Page, Route

from conftest import PICTURES, URL, Opener, ask, until

PATH = "/models/quintet"


def opened(playground: Opener, size: str, *, dark: bool = False) -> Page:
    width, height = SIZES[size]
    page = playground(width=width, height=height, dark=dark).page
    page.goto(f"{URL}/docs")
    page.wait_for_selector("#given:not([hidden])")
    return page


def beneath(route: Route) -> None:
    """As a reverse proxy that has the server beneath a path."""
    route.fulfill(response=route.fetch(url=route.request.url.replace(f"{URL}{PATH}", URL)))


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
    page.locator('a[href="#novita"]').click()
    bar, title = (page.locator(one).bounding_box() for one in (".dialects", "#novita"))
    assert bar and title and bar["y"] + bar["height"] <= title["y"]  # what is gone to is not behind what stays
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


def test_beneath_a_path_of_a_reverse_proxy_both_pages_ask_what_is_beneath_it(playground: Opener) -> None:
    one = playground()
    page = one.page
    page.route(f"{URL}{PATH}/**", beneath)
    page.goto(f"{URL}{PATH}/docs")
    page.wait_for_selector("#given:not([hidden])")
    assert json.loads(tried(page, "openai.model"))["object"] == "text_completion"  # the model's name came from the list
    page.click("text=OpenAPI document >> nth=0")
    until(page, "document.body.innerText.includes('openapi')")
    page.go_back()
    page.click("nav >> text=Playground")
    page.wait_for_selector("#text .line")
    until(page, "document.querySelector('.choices select').value !== ''")
    one.write("Once upon")
    assert one.complete() != ""
    asked = [url for url in one.asked if not url.startswith(("blob:", "data:"))]
    assert asked and all(url.startswith(f"{URL}{PATH}/") for url in asked)


def test_a_request_is_copied_with_the_address_and_the_key_that_is_needed(playground: Opener) -> None:
    page = opened(playground, "wide")
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    article = page.locator('[id="cerebras.temperature"]')
    article.locator("summary").click()
    article.locator("text=Copy as curl").click()
    until(page, "window.copied")
    assert page.evaluate("window.copied").startswith(f"curl {URL}/cerebras/v1/completions -H 'content-type: application/json' -d '{{")
    page.fill("#given input[name=key]", "sk-secret")
    article.locator("text=Copy as curl").click()
    until(page, "window.copied.includes('$QUINTET_API_KEY')")
    assert "sk-secret" not in page.evaluate("window.copied")


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


def test_a_form_is_there_whatever_is_wrong_with_the_key_or_the_list_of_models(playground: Opener) -> None:
    page = opened(playground, "wide")
    page.fill("#given input[name=key]", "sk-\N{LEFT DOUBLE QUOTATION MARK}x")
    article = page.locator('[id="openai.model"]')
    article.locator("summary").click()
    article.locator("button.main").click()
    until(page, "document.getElementById('openai.model').querySelector('.hint').textContent === 'No answer'")


def test_of_an_answer_that_is_too_long_to_be_shown_the_server_makes_no_more(playground: Opener) -> None:
    page = opened(playground, "wide")
    article = page.locator('[id="openai.stream"]')
    article.locator("summary").click()
    article.locator("textarea").fill('{"prompt": "a", "stream": true, "max_tokens": 8000, "ignore_eos": true}')
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    article.locator("button.main").click()
    until(page, "document.getElementById('openai.stream').querySelector('pre').textContent.endsWith('\\n…')")
    for _ in range(100):
        if failed:
            break
        page.wait_for_timeout(50)
    assert failed == [f"{URL}/openai/v1/completions"]
