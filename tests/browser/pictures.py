"""The pictures of docs/playground.md, as a user would come by them; looked at by people, checked for what is on them."""

from __future__ import annotations

import pytest

from conftest import PICTURES, Opener, Playground

MOST_BYTES = 150_000
WIDE = {"width": 1280, "height": 800}


def snap(one: Playground, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"playground-{name}.png"
    one.page.wait_for_timeout(150)
    one.page.screenshot(path=path, animations="disabled", caret="hide")
    assert 10_000 < path.stat().st_size < MOST_BYTES


def story(one: Playground) -> None:
    one.open()
    one.set(seed=29, max_tokens=90, temperature=0.8)
    one.page.click("#tab-tree")
    one.write("The lighthouse keeper opened the door, and the storm came in with")
    one.complete()
    one.page.keyboard.press("Control+Space")
    one.done()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_writing(playground: Opener, dark: bool) -> None:
    one = playground(**WIDE, dark=dark)
    story(one)
    one.page.hover("#text .token >> nth=16")
    one.page.wait_for_selector(".alternatives li >> nth=9")
    snap(one, "write-dark" if dark else "write")


def test_a_phone(playground: Opener) -> None:
    one = playground(width=390, height=844)
    story(one)
    one.page.evaluate("scrollTo(0, 0)")
    snap(one, "phone")


def test_the_surprise_map(playground: Opener) -> None:
    one = playground(**WIDE)
    page = one.open()
    page.click("nav >> text=Surprise")
    page.fill(
        ".surprise textarea",
        "The capital of France is Paris, and the capital of Italy is Rome.\n"
        "The capital of Spain is Madrid, and the capital of Portugal is Tuesday.\n"
        "Water boils at 100 degrees Celsius.\nWater boils at ninety bananas.\n",
    )
    page.click("button.main")
    page.wait_for_selector("#perplexity")
    page.click("#tab-code")
    page.wait_for_timeout(400)
    snap(one, "surprise")


def test_comparing(playground: Opener) -> None:
    one = playground(**WIDE)
    page = one.open()
    one.set(seed=12, max_tokens=36)
    page.click("#tab-tree")
    page.click("nav >> text=Compare")
    page.fill(".compare textarea >> nth=0", "Three things to know about the moon:\n\n1.")
    page.select_option("section[aria-label=B] label:has-text('Another control') select", "temperature")
    page.fill("#B-temperature", "0.4")
    page.keyboard.press("Tab")
    page.click("button.main")
    page.wait_for_selector("#parting")
    snap(one, "compare")
