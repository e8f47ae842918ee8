"""The code that the page writes does what the page does, run by curl and by each provider's own SDK."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import urllib.request
from typing import Any

import pytest
from playwright.sync_api import Page

from conftest import URL, Opener

HEAD = 'It\'s "a" \\ test:\n\tgrüße 😀 $HOME `x`'
DIALECTS = ("openai", "fireworks", "together", "cerebras", "novita")


def run(command: list[str], text: str | None = None) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False, env=clean)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_curl_and_the_sdk_give_the_text_that_the_page_shows(playground: Opener, dialect: str, whole: bool) -> None:
    one = playground()
    page = one.open()
    one.speak(dialect)
    one.set(seed=21, max_tokens=10, temperature=0.9, stop='["zzz\'"]', top_k=40, min_p=0.02, ignore_eos=True)
    page.click("#text")
    page.keyboard.insert_text(HEAD)
    page.click("#tab-code")
    if whole:
        page.click("text=with all that the page itself asks for")
    page.wait_for_timeout(500)
    code = page.inner_text("pre")
    page.click("text=Python SDK")
    program = page.inner_text("pre")
    page.click("#text")
    page.keyboard.press("Control+End")
    made = one.complete()
    said = run(["bash", "-c", code.replace("curl ", "curl -sS --fail ", 1)])
    if whole:
        chunks = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: {")]
        assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == made
    else:
        assert json.loads(said)["choices"][0]["text"] == made
    printed = run([sys.executable, "-"], program)
    assert printed == (made if whole else made + "\n")


def test_the_other_views_have_their_code_too(playground: Opener) -> None:
    one = playground()
    page = one.open()
    one.set(seed=21, max_tokens=6)
    page.click("#tab-code")
    page.select_option(".choices select >> nth=0", "gap")
    page.click("nav >> text=Surprise")
    page.fill(".surprise textarea", HEAD)
    assert answer(page)["choices"][0]["text"] == HEAD
    page.click("nav >> text=Fill")
    page.fill("textarea >> nth=0", "before")
    page.fill("textarea >> nth=1", "after")
    page.click("button.main")
    page.wait_for_selector(".gap .token")
    one.done()
    assert answer(page)["choices"][0]["text"] == page.locator(".gap .tokens").text_content()


def answer(page: Page) -> Any:
    page.wait_for_timeout(500)
    return json.loads(run(["bash", "-c", page.inner_text("pre").replace("curl ", "curl -sS --fail ", 1)]))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_given_to_an_sdk_by_name_is_what_it_knows(dialect: str) -> None:
    with urllib.request.urlopen(f"{URL}/openapi.json?dialect={dialect}", timeout=60) as answer:
        document = json.load(answer)
    schema = document["paths"]["/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    named = {name for name, one in schema["properties"].items() if not told(one).endswith("Here: extension.")}
    if dialect == "novita":
        named -= {"top_k", "min_p", "repetition_penalty"}  # sdks.js
    assert named <= set(inspect.signature(create(dialect)).parameters)


def told(field: dict[str, Any]) -> str:
    """What is said of a field, or of a member that is the provider's own."""
    words = [str(one["description"]) for one in field.get("properties", {}).values()] or [str(field["description"])]
    return min(words, key=lambda text: text.endswith("Here: extension."))


def create(dialect: str) -> Any:
    if dialect == "together":
        from together import Together

        return Together(api_key="x").completions.create
    if dialect == "fireworks":
        from fireworks import Fireworks

        return Fireworks(api_key="x").completions.create
    if dialect == "cerebras":
        from cerebras.cloud.sdk import Cerebras

        return Cerebras(api_key="x", warm_tcp_connection=False).completions.create
    from openai import OpenAI

    return OpenAI(api_key="x").completions.create
