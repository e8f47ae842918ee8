"""A text of 20,000 tokens stays fluid: what a token or a key costs does not grow with the text."""

from __future__ import annotations

from conftest import Opener, Playground, ask

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


def book(tokens: int, lines: bool) -> str:
    """Text of about so many tokens, with lines or without a single one."""
    sentence = "The keeper of the lighthouse counted ships and birds, and wrote each of them down in a long grey book. "
    each = len(ask("/tokenize", {"prompt": sentence})["tokens"])
    parts = [sentence + ("\n" if lines and k % 4 == 3 else "") for k in range(tokens // each + 1)]
    return "".join(parts)


def pasted(playground: Opener, text: str) -> Playground:
    one = playground()
    page = one.open()
    one.set(max_tokens=STREAMED, seed=2, truncate_prompt_tokens=-1, ignore_eos=True)
    page.click("#tab-tree")
    page.click("#text")
    page.keyboard.insert_text(text)
    assert one.text().replace("\n", "") == text.replace("\n", "")
    return one


def figures(one: Playground, what: str) -> None:
    frames, long = one.page.evaluate("[window.frames, window.long]")
    frames = sorted(frames[2:])
    middle, high = frames[len(frames) // 2], frames[int(len(frames) * 0.99)]
    print(f"\n{what}: {len(frames)} frames, median {middle:.1f} ms, 99th percentile {high:.1f} ms; {len(long)} tasks over 50 ms", end="")


def test_streaming_at_the_end_of_a_long_text(playground: Opener) -> None:
    for lines in (True, False):
        one = pasted(playground, book(TOKENS, lines))
        before = one.page.locator("#text span").count()
        one.page.evaluate(WATCH)
        one.page.keyboard.press("Control+Enter")
        one.done()
        touched = one.page.evaluate("window.touched")
        drawn = one.page.locator("#text .token").count()
        figures(one, f"streaming {drawn} tokens after {TOKENS:,}, {'lines' if lines else 'one paragraph'}")
        assert drawn >= STREAMED * 0.9
        assert one.page.locator("#text span").count() >= before + drawn
        assert touched <= MOST_TOUCHED * drawn + 400  # the last block is at most 300 pieces, and drawn again when it is full


def test_typing_in_the_midst_of_a_long_text_of_drawn_tokens(playground: Opener) -> None:
    """Every one of its tokens has an element: the heaviest case."""
    one = playground()
    page = one.open()
    page.click("nav >> text=Surprise")
    page.fill(".surprise textarea", book(7_000, lines=True))
    page.click("button.main")
    page.wait_for_selector("#perplexity")
    page.click("text=Open in Write")
    page.wait_for_selector("#text .token")
    page.click("#tab-tree")
    page.click("#text")
    page.evaluate(WATCH)
    page.keyboard.press("Control+Home")
    for _ in range(40):
        page.keyboard.press("ArrowDown")
    page.keyboard.type("x")
    page.wait_for_timeout(300)
    page.evaluate("window.touched = 0; window.frames.length = 0; window.long.length = 0")
    page.keyboard.type("and then nothing was said for a while")
    page.wait_for_timeout(200)
    figures(one, f"typing 37 characters among {page.locator('#text span').count():,} elements")
    assert page.evaluate("window.touched") < 37 * 400


def test_blocks_that_are_out_of_sight_are_not_laid_out(playground: Opener) -> None:
    one = pasted(playground, book(TOKENS, lines=False))
    sizes = one.page.eval_on_selector_all("#text .line", "all => all.map(one => one.textContent.length)")
    assert len(sizes) > 30
    assert max(sizes) <= 2000
    assert one.page.evaluate("getComputedStyle(document.querySelector('#text .line')).contentVisibility") == "auto"
