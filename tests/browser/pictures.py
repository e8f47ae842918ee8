"""The pictures of docs/playground.md, as a user would come by them; looked at by people, checked for what is on them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from conftest import PICTURES, Opener, Playground

RECORDING = Path(__file__).parents[2] / "build" / "browser" / "tour.zip"
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


def test_the_tour(playground: Opener) -> None:
    """Generate, re-roll a token, branch, map a text's surprise: one recorded run, to be opened with ``playwright show-trace``."""
    one = playground(**WIDE)
    one.context.tracing.start(screenshots=True, snapshots=True)
    began = time.monotonic()
    page = one.open()
    one.write("The first rule of the library was")
    one.complete()
    page.hover("#text .token >> nth=3")
    page.wait_for_selector(".alternatives li >> nth=9")
    page.click(".alternatives li button:not(.chosen) >> nth=1")
    one.done()
    page.click("#tab-tree")
    page.click("#text")
    page.keyboard.press("Control+End")
    page.keyboard.press("Control+Space")
    one.done()
    assert page.locator("[role=treeitem]").count() >= 6
    page.click("nav >> text=Surprise")
    page.click("text=Take the text of Write")
    page.click("button.main")
    page.wait_for_selector("#perplexity")
    print(f"\nthe tour took {time.monotonic() - began:.0f} s")
    one.context.tracing.stop(path=RECORDING)
    assert RECORDING.stat().st_size > 10_000
