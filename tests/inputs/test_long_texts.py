"""Long texts: refused by their bytes where they cannot fit, tokenised off the event loop where they may, tenants in turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inputs.images.pictures import data_url, file
from tests.support.seeing import IDEFICS, IDS, ROWS, SeeingBackend, SeeingTokenizer

from quintet.backends.toy import ToyTokenizer
from quintet.errors import PromptTooLong
from quintet.executor import FairExecutor
from quintet.guides.check import GuideCheck
from quintet.inputs import prepare
from quintet.inputs.capabilities import EVERYTHING, Capabilities
from quintet.inputs.encoding import PORTION_CHARS
from quintet.inputs.images.expansion import ExpansionPlacer, ProcessorTraits
from quintet.inputs.images.layout import ImageTraits
from quintet.inputs.images.places import Placer
from quintet.inputs.images.reader import ImageReader
from quintet.inputs.infill import Infill
from quintet.inputs.mixed import joined
from quintet.inputs.prepare import INLINE_CHARS, LARGE_CHARS, Preparer
from quintet.inputs.resolve import MOST_CUT, require_fitting
from quintet.inputs.sequence import SequenceSpec
from quintet.models.traits import Fim, Traits
from quintet.request import IMAGE_MARK, Cut, Gap, Image, Prompt, Sampling

CONTEXT = 4096


def spec(prompt: Prompt, **changes: Any) -> SequenceSpec:
    return SequenceSpec(prompt, None, changes.pop("sampling", Sampling(0.0, 1.0, 0)), None, echo=False, **changes)


class Watched(ToyTokenizer):
    """Makes one token of any text, and tells of each where it did so."""

    def __init__(self, **traits: Any) -> None:
        self.traits = Traits(**traits)
        self.seen: list[tuple[str, bool]] = []

    def encode(self, text: str) -> list[int]:
        self.seen.append((text, threading.current_thread() is threading.main_thread()))
        return [1]

    encode_inside = encode_quoted = encode


def preparer(tokenizer: ToyTokenizer) -> Preparer:
    about = Capabilities(
        model="m", context=CONTEXT, vocab=257, pieces=[b""] * 257, max_logprobs=5, max_sequences=128, fingerprint="f", supported=EVERYTHING
    )
    executor = FairExecutor()
    return Preparer(SimpleNamespace(tokenizer=tokenizer, capabilities=about), GuideCheck(), executor, ImageReader(executor))


@pytest.mark.fault("B01", "B04")
@pytest.mark.parametrize(
    ("specs", "param", "least"),
    [
        ([spec("x" * (CONTEXT * 8 + 1))], "prompt", CONTEXT + 1),
        ([spec("a"), spec("\u65e5" * CONTEXT * 3, number=1)], "prompt[1]", CONTEXT * 9 // 8),
        ([spec("a", suffix="x" * CONTEXT * 9)], "suffix", CONTEXT * 9 // 8),
        ([spec("x" * CONTEXT * 9, truncate=True)], "prompt", CONTEXT * 9 // 8),
        ([spec("a", prediction="x" * CONTEXT * 9)], "prediction", CONTEXT * 9 // 8),
        ([spec("a", suffix="x" * CONTEXT * 9, cut=Cut(1))], "suffix", CONTEXT * 9 // 8),
        ([spec("a", prediction="x" * CONTEXT * 9, spelled=(("prediction", "speculation"),))], "speculation", CONTEXT * 9 // 8),
    ],
)
def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(specs: list[SequenceSpec], param: str, least: int) -> None:
    """A prompt is never cut to fit: ``truncate`` lowers ``max_tokens`` alone."""
    tokenizer = Watched(longest=8)
    with pytest.raises(PromptTooLong) as refused:
        asyncio.run(preparer(tokenizer).prepare(specs))
    assert (refused.value.param, refused.value.got) == (param, f"at least {least}")
    assert tokenizer.seen == []


@pytest.mark.fault("B01", "B04")
@pytest.mark.parametrize("parts", [[1, "x" * CONTEXT * 8], ["x" * 8] * CONTEXT + [1], [1] * (CONTEXT + 1)])
def test_a_prompt_of_ids_and_texts_that_cannot_fit_is_refused_before_it_is_tokenised(parts: list[int | str]) -> None:
    """Twelve megabytes of it were."""
    tokenizer = Watched(longest=8)
    with pytest.raises(PromptTooLong) as refused:
        asyncio.run(preparer(tokenizer).join({"prompt[0]": [1, "x"], "prompt[1]": parts}))
    assert (refused.value.param, refused.value.got) == ("prompt[1]", f"at least {CONTEXT + 1}")
    assert tokenizer.seen == []


@pytest.mark.fault("B04")
@pytest.mark.parametrize(("longest", "most"), [(None, MOST_CUT), (8, MOST_CUT), (1024, CONTEXT * 1024)])
def test_a_prompt_that_is_cut_may_be_as_long_as_the_context_can_hold_or_so_many_bytes(longest: int | None, most: int) -> None:
    tokenizer = Watched(longest=longest)
    asyncio.run(preparer(tokenizer).prepare([spec("x" * most, cut=Cut(1))]))
    with pytest.raises(PromptTooLong, match=f"'prompt' must be at most {most} bytes"):
        asyncio.run(preparer(tokenizer).prepare([spec("x" * (most + 1), cut=Cut(1))]))
    assert len(tokenizer.seen) == 1


@pytest.mark.parametrize(
    ("prompt", "traits"),
    [
        ("x" * CONTEXT * 8, {"longest": 8}),
        ("\x04" * CONTEXT * 9, {"longest": 8, "dropped": b"\x03\x04"}),
        ("x" * CONTEXT * 9, {}),
    ],
    ids=["the longest tokens fill the context", "bytes without a token", "a tokenizer that drops text"],
)
def test_what_might_fit_is_tokenised(prompt: str, traits: dict[str, Any]) -> None:
    tokenizer = Watched(**traits)
    asyncio.run(preparer(tokenizer).prepare([spec(prompt)]))
    assert tokenizer.seen == [(prompt, False)]


@given(texts=st.lists(st.text("a\x04\u65e5", max_size=200), min_size=1, max_size=4), longest=st.integers(1, 5), context=st.integers(1, 100))
def test_a_text_is_refused_exactly_if_the_longest_tokens_cannot_hold_it(texts: list[str], longest: int, context: int) -> None:
    fits = all(len(text.replace("\x04", "").encode()) <= longest * context for text in texts)
    try:
        require_fitting([spec(text) for text in texts], Traits(longest=longest, dropped=b"\x04"), context)
    except PromptTooLong:
        assert not fits
    else:
        assert fits


@pytest.mark.fault("B04")
def test_long_texts_are_tokenised_off_the_event_loop_wherever_they_stand() -> None:
    """Prompts, suffixes, ``bad_words`` and ``/tokenize``; many short ones count like one long."""

    async def scenario(made: Preparer) -> None:
        await made.prepare([spec("x" * (INLINE_CHARS + 1))])
        await made.prepare([spec("y" * (INLINE_CHARS - 10)), spec("z" * 11)])
        await made.prepare([spec("a", sampling=Sampling(0.0, 1.0, 0, bad_words=("b" * INLINE_CHARS,)))])
        await made.tokenize("t" * (INLINE_CHARS + 1), add_special=False)
        await made.tokenize_all([f"u{number}" * 99 for number in range(99)], add_special=False)
        await made.prepare([spec("short")])

    tokenizer = Watched()
    asyncio.run(scenario(preparer(tokenizer)))
    on_the_loop = [text[:5] for text, main in tokenizer.seen if main]
    assert on_the_loop == ["a", "short"]


@pytest.mark.fault("B21")
def test_one_with_many_long_texts_does_not_keep_another_waiting_for_all_of_them() -> None:
    """A tenant's texts are cut into portions, and another's turn comes between two."""
    tokenizer, go = Watched(), threading.Event()
    encode = tokenizer.encode

    def held(text: str) -> list[int]:
        assert go.wait(60)
        return encode(text)

    tokenizer.encode = held  # type: ignore[method-assign]

    async def scenario(made: Preparer) -> Sequence[object]:
        many = [spec(f"{number}{'x' * PORTION_CHARS}") for number in range(6)]
        tasks = [asyncio.create_task(made.prepare(many, "a"))]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(made.prepare([spec("b" * PORTION_CHARS)], "b")))
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(*tasks)

    asyncio.run(scenario(preparer(tokenizer)))
    assert "".join(text[0] for text, _ in tokenizer.seen).index("b") <= 2


@pytest.mark.fault("B18")
def test_of_requests_with_large_texts_one_at_a_time_has_them_as_ids() -> None:
    """All that had arrived had them while they waited for the executor: up to 500 MB each."""
    tokenizer, steps = Watched(fim=Fim(1, 2, 3)), list[str]()
    encode = tokenizer.encode

    def noting(text: str) -> list[int]:
        steps.extend(text[:1] * (len(text) > INLINE_CHARS))
        return encode(text)

    tokenizer.encode = tokenizer.encode_inside = tokenizer.encode_quoted = noting  # type: ignore[method-assign]
    a, b, c, d = (letter * (LARGE_CHARS // 2) for letter in "abcd")

    async def done(work: Coroutine[Any, Any, object]) -> None:
        await work
        steps.append("done")

    async def scenario(made: Preparer) -> None:
        several = made.prepare([spec(a), spec(f"{a}a")])
        cut = made.prepare([spec(f"{b}{b}b", cut=Cut(1))])
        gap = made.fill(Gap(c, "", f"{c}c", (), 1))
        mixed = made.join({"prompt": [1, d, f"{d}d"]})
        await asyncio.gather(*(done(work) for work in (several, cut, gap, mixed)))

    asyncio.run(scenario(preparer(tokenizer)))
    assert steps == [*"aa", "done", "b", "done", *"cc", "done", *"dd", "done"]


@pytest.mark.fault("B18")
@pytest.mark.parametrize("traits", [IDEFICS, ROWS], ids=["tiles", "the engine's processor"])
def test_a_large_prompt_with_an_image_has_that_turn_too(traits: ImageTraits | ProcessorTraits) -> None:
    """It was ids, and no large text any more, before it was asked for its turn."""
    tokenizer, steps = SeeingTokenizer(), list[str]()
    tokenizer.traits = Traits()
    encode = tokenizer.encode

    def noting(text: str) -> list[int]:
        steps.extend(text[:1] * (len(text) > INLINE_CHARS))
        return encode(text)

    tokenizer.encode = noting  # type: ignore[method-assign]
    executor = FairExecutor()
    images = ImageReader(executor)
    made = Preparer(SimpleNamespace(tokenizer=tokenizer, capabilities=SeeingBackend(traits).capabilities), GuideCheck(), executor, images)

    async def one(letter: str) -> None:
        with pytest.raises(PromptTooLong, match=r"'prompt' must have at most 2048 tokens, the context, got at least \d+"):
            await made.prepare([spec(letter * 2 * LARGE_CHARS + IMAGE_MARK, images=(Image(data_url(file()), "images[0]"),))])
        steps.append("done")

    async def scenario() -> None:
        await asyncio.gather(*map(one, "abc"))
        images.close()

    asyncio.run(scenario())
    assert (sorted(steps[::2]), steps[1::2]) == (["a", "b", "c"], ["done"] * 3)


@pytest.mark.fault("B04")
def test_what_many_ids_are_put_together_of_is_put_together_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = ToyTokenizer()
    tokenizer.traits = Traits(fim=Fim(1, 2, 3))
    threads: list[bool] = []
    fill = Infill.fill

    def noted_fill(*about: Any) -> tuple[int, ...]:
        threads.append(threading.current_thread() is threading.main_thread())
        return fill(*about)

    def noted_join(*about: Any) -> list[tuple[int, ...]]:
        threads.append(threading.current_thread() is threading.main_thread())
        return joined(*about)

    monkeypatch.setattr(Infill, "fill", noted_fill)
    monkeypatch.setattr(prepare, "joined", noted_join)

    async def scenario(made: Preparer) -> None:
        await made.fill(Gap("x" * INLINE_CHARS, "", "y", (), 1))
        await made.join({"prompt[0]": [1, "x" * (CONTEXT // 2)], "prompt[1]": [1, "y" * (CONTEXT // 2)]})
        with pytest.raises(PromptTooLong):
            await made.join({"prompt": [1, "x" * CONTEXT]})

    asyncio.run(scenario(preparer(tokenizer)))
    assert threads == [False] * 3


@pytest.mark.parametrize("traits", [IDEFICS, ROWS], ids=["laid out here", "by the engine's processor"])
def test_ids_with_images_that_cannot_fit_are_refused_before_they_are_looked_at(traits: ImageTraits | ProcessorTraits) -> None:
    """Millions of them were gone through, for each sample anew, and the image was read."""
    backend = SeeingBackend(traits, context=CONTEXT)
    executor = FairExecutor()
    made = Preparer(backend, GuideCheck(), executor, ImageReader(executor))
    samples = [spec((1,) * (CONTEXT + 1), images=(Image("no URL", "images[0]"),)) for _ in range(2)]
    with pytest.raises(PromptTooLong) as refused:
        asyncio.run(made.prepare(samples))
    assert (refused.value.param, refused.value.got) == ("prompt", f"at least {CONTEXT + 1}")


@pytest.mark.parametrize("traits", [IDEFICS, ROWS], ids=["laid out here", "by the engine's processor"])
def test_images_are_put_among_many_ids_off_the_event_loop_and_looked_for_there_once_for_all_samples(
    traits: ImageTraits | ProcessorTraits, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[tuple[str, bool]] = []

    def noted(kind: type, name: str) -> None:
        plain = getattr(kind, name)

        def note(*about: Any) -> Any:
            threads.append((name, threading.current_thread() is threading.main_thread()))
            return plain(*about)

        monkeypatch.setattr(kind, name, note)

    for kind in (Placer, ExpansionPlacer):
        noted(kind, "require_match")
        noted(kind, "place")
    noted(Placer, "ids")
    backend = SeeingBackend(traits, context=2 * INLINE_CHARS)
    executor = FairExecutor()
    images = ImageReader(executor)
    made = Preparer(backend, GuideCheck(), executor, images)
    place = ROWS.token if traits is ROWS else IDS["<image>"]
    samples = [spec((1,) * INLINE_CHARS + (place,), images=(Image(data_url(file(32, 32)), "images[0]"),)) for _ in range(2)]
    asyncio.run(made.prepare(samples))
    images.close()
    assert threads == [(name, False) for name in ("require_match", *(("ids",) if traits is IDEFICS else ()), "place")]
