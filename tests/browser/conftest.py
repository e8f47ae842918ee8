"""A browser, a page of the playground in it, and what tests do there."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

URL = os.environ["QUINTET_URL"]
PICTURES = Path(os.environ["QUINTET_PICTURES"])
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
TEXT = "[...document.querySelectorAll('#text .line')].map(one => one.textContent).join('\\n')"


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as made:
        yield made


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    made = playwright.chromium.launch(executable_path=os.environ["QUINTET_CHROMIUM"], args=ARGUMENTS)
    yield made
    made.close()


def until(page: Page, expression: str) -> None:
    """Wait until an expression holds. Playwright's own way evaluates strings in the page, which the page's policy forbids."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"never: {expression}")


class Playground:
    """A tab with the playground, in a profile of its own."""

    def __init__(self, browser: Browser, url: str, width: int, height: int, dark: bool) -> None:
        scheme = "dark" if dark else "light"
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True)
        self.context.set_default_timeout(60_000)
        self.page: Page = self.context.new_page()
        self.url = url
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self) -> Page:
        self.page.goto(self.url + "/")
        self.page.wait_for_selector("#text .line")
        until(self.page, "document.querySelector('.choices select').value !== ''")
        self.page.wait_for_timeout(100)  # what was kept has been read
        return self.page

    def text(self) -> str:
        found = self.page.evaluate(TEXT)
        assert isinstance(found, str)
        return found

    def until_text(self, text: str) -> None:
        """Wait until the text is this."""
        until(self.page, f"({TEXT}) === {json.dumps(text)}")

    def write(self, text: str) -> None:
        self.page.click("#text")
        self.page.keyboard.press("Control+End")
        self.page.keyboard.type(text)

    def done(self) -> None:
        """Wait until nothing is being written."""
        self.page.wait_for_selector("body:not([data-busy])")
        self.page.wait_for_timeout(50)

    def complete(self) -> str:
        """Complete at the cursor; gives what came."""
        before = self.text()
        self.page.keyboard.press("Control+Enter")
        self.done()
        after = self.text()
        assert self.page.locator(".problem").count() == 0, self.problem()
        assert after.startswith(before)
        return after[len(before) :]

    def speak(self, dialect: str) -> None:
        """Choose a dialect. What is sent is the one's before until its fields are there."""
        self.page.select_option(".choices select >> nth=1", dialect)
        self.page.click("#tab-controls")
        self.page.wait_for_selector(f'.controls a[href="docs#{dialect}"]')

    def set(self, **controls: object) -> None:
        """Controls of the panel."""
        self.page.click("#tab-controls")
        for name, value in controls.items():
            box = self.page.locator(f'[id="control-{name}"]')
            if box.evaluate("one => one.tagName") == "SELECT":
                box.select_option(str(value).lower())
            else:
                box.fill(str(value))
                box.blur()

    def problem(self) -> str:
        found = self.page.inner_text(".problem span")
        assert isinstance(found, str)
        return found


Opener = Callable[..., Playground]


@pytest.fixture
def playground(browser: Browser) -> Iterator[Opener]:
    """Opens the page; in the end nothing may have gone wrong in it unheard, and nobody else been asked."""
    opened: list[Playground] = []

    def opener(url: str = URL, width: int = 1280, height: int = 800, dark: bool = False) -> Playground:
        opened.append(Playground(browser, url, width, height, dark))
        return opened[-1]

    yield opener
    for one in opened:
        one.context.close()
        assert [error for error in one.errors if "Failed to load resource" not in error] == []  # refusals are shown, and checked there
        assert all(url.startswith((one.url, "blob:", "data:")) for url in one.asked)


def ask(path: str, body: object, dialect: str = "openai", url: str = URL) -> Any:
    """The server, without a browser."""
    headers = {"Content-Type": "application/json", "X-Completions-Dialect": dialect}
    with urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode(), headers), timeout=60) as answer:
        return json.load(answer)
