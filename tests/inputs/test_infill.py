"""Fill in the middle: the form a prompt takes, what comes back of it, and what models without it say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.preparing import prepare, service
from tests.support.requests import MINIMAL

from quintet.backends.base import State
from quintet.backends.native.core.loader import Loaded
from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import EOS, ToyRunner, ToyTokenizer
from quintet.config import EngineConfig
from quintet.errors import BadRequest, Unsupported
from quintet.events import ChoiceDelta, ChoiceDone, Event, Finish, Finished, TokenText
from quintet.inputs import resolve
from quintet.inputs.infill import Infill
from quintet.inputs.sequence import Prepared, SequenceSpec
from quintet.inputs.tokenizer import Tokenizer
from quintet.models.traits import Fim, ThinkTags, Traits
from quintet.request import Beams, CompletionRequest, Cut, Guide, GuideKind, Prompt, Sampling, Shown

PRE, SUF, MID, BOS = 1, 2, 3, 4


class FimTokenizer(ToyTokenizer):
    """The toy's, with control characters as markers and a BOS before every text."""

    def __init__(self, middle: int = MID) -> None:
        self.traits = Traits(added=(1, 0), fim=Fim(PRE, SUF, middle))

    @property
    def pieces(self) -> list[bytes]:
        return [b"" if token in (PRE, SUF, MID, BOS) else piece for token, piece in enumerate(super().pieces)]

    def encode(self, text: str) -> list[int]:
        return [BOS, *super().encode(text)]

    def encode_inside(self, text: str) -> list[int]:
        return super().encode(text)


class SpacingTokenizer(FimTokenizer):
    """As SentencePiece's: a text begins with a space."""

    def encode(self, text: str) -> list[int]:
        return super().encode(f" {text}" if text else text)


@dataclass
class Lab:
    """An engine on the toy model with some tokenizer."""

    tokenizer: Tokenizer

    def load(self, progress: Callable[[float], None]) -> Loaded[Tokenizer]:
        return Loaded(runner=ToyRunner(), tokenizer=self.tokenizer, name="toy", fingerprint="f")

    async def start(self) -> Engine:
        engine = Engine(self.load, EngineConfig(kv_bytes=1 << 20))
        while engine.health().state is not State.READY:
            await asyncio.sleep(0.001)
        return engine

    def prepare(self, spec: SequenceSpec) -> Prepared:
        async def go() -> Prepared:
            engine = await self.start()
            try:
                return await prepare(engine, [spec])
            finally:
                await engine.close()

        return asyncio.run(go())

    def complete(self, asked: CompletionRequest) -> list[Event]:
        async def go() -> list[Event]:
            engine = await self.start()
            try:
                job = await service(engine).prepare(asked)
                return [event async for batch in job.events() for event in batch]
            finally:
                await engine.close()

        return asyncio.run(go())


FIM = Lab(FimTokenizer())
SPEC = SequenceSpec("ab", 4, Sampling(0.0, 1.0, 0), None, False, suffix="yz")


def test_a_suffix_counts_once_for_each_prompt_and_is_refused_where_that_is_more_than_bodies_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand short prompts and a suffix as long as the context were a hundred kilobytes, and gigabytes in the engine."""
    monkeypatch.setattr(resolve, "MOST_SUFFIXES", 90)

    async def go(count: int) -> tuple[int, int]:
        engine = await Lab(FimTokenizer()).start()
        try:
            prompts = [f"number {number}" for number in range(count)]
            specs = [replace(SPEC, prompt=prompt, suffix="y" * 29) for prompt in prompts for _ in range(2)]
            return resolve.size_of(specs, resolve.Known({}, {"y" * 29: [0] * 30})), len((await prepare(engine, specs)).sequences)
        finally:
            await engine.close()

    assert asyncio.run(go(1)) == (30 + 8, 2)
    with pytest.raises(BadRequest, match="stands in each of 4 prompts, and must come to at most 90 tokens") as caught:
        asyncio.run(go(4))
    assert caught.value.param == "suffix"


def request(prompt: str = "ab", **wanted: object) -> CompletionRequest:
    plain = replace(MINIMAL, model="m", prompts=(prompt,), max_tokens=4, sampling=Sampling(0.0, 1.0, 0), suffix="yz")
    return replace(plain, **wanted)  # type: ignore[arg-type]


def entries(events: list[Event]) -> list[TokenText]:
    return [token for event in events if isinstance(event, ChoiceDelta) for token in event.tokens]


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, ChoiceDelta))


def test_a_prompt_stands_before_its_suffix_between_the_models_markers() -> None:
    """One BOS, before everything; none inside."""
    assert FIM.prepare(SPEC).sequences[0].tokens == (BOS, PRE, *b"ab", SUF, *b"yz", MID)


def test_a_suffix_has_no_space_that_a_tokenizer_puts_before_a_text() -> None:
    """It stands inside one. Code Llama was trained so."""
    assert Lab(SpacingTokenizer()).prepare(SPEC).sequences[0].tokens == (BOS, PRE, *b" ab", SUF, *b"yz", MID)


@pytest.mark.parametrize(
    ("prompt", "suffix", "inside"),
    [
        ("ab", "<t>", False),
        ("ab", "</t>", False),
        ("<t>", "</t>", True),
        ("<t>", "yz", True),
        ("<t></t>", "<t>", False),
        ("<", "t>", False),
    ],
)
def test_a_think_tag_in_the_suffix_opens_and_closes_no_block(prompt: str, suffix: str, inside: bool) -> None:
    """It is text behind the cursor. A guide waited for the end of a block that no model had begun."""
    tokenizer = FimTokenizer()
    tokenizer.traits = replace(tokenizer.traits, think=ThinkTags("<t>", "</t>"))
    asked = replace(SPEC, prompt=prompt, suffix=suffix)
    (free,) = Lab(tokenizer).prepare(asked).sequences
    (guided,) = Lab(tokenizer).prepare(replace(asked, guide=Guide(GuideKind.REGEX, "a", "regex"))).sequences
    assert free.thinking is not None and free.thinking.inside == inside
    assert (guided.thinking is not None) == inside


def test_a_server_that_is_told_so_puts_the_suffix_first_and_echoes_the_same() -> None:
    form = Infill(PRE, SUF, MID, (BOS,), 0, suffix_first=True)
    tokens, start, end = form.join("ab", b"ab", b"yz")
    assert tokens == (BOS, SUF, *b"yz", PRE, *b"ab", MID)
    assert bytes(tokens[start:end]) == b"ab"


def test_token_ids_are_taken_as_they_are() -> None:
    assert FIM.prepare(replace(SPEC, prompt=(97, 98))).sequences[0].tokens == (PRE, 97, 98, SUF, *b"yz", MID)


@pytest.mark.parametrize("prompt", ["abcd", tuple(b"abcd")])
def test_of_a_prompt_that_is_cut_so_many_of_its_own_tokens_stand_between_the_markers(prompt: Prompt) -> None:
    """Whatever the tokenizer puts before a text: that goes before the form."""
    before, after = (BOS, PRE) if isinstance(prompt, str) else (PRE,), (SUF, *b"yz", MID)
    for cut, kept in ((Cut(2), b"cd"), (Cut(1), b"d"), (Cut(3, left=False), b"abc"), (Cut(4), b"abcd"), (Cut(5), b"abcd"), (Cut(0), b"")):
        assert FIM.prepare(replace(SPEC, prompt=prompt, cut=cut)).sequences[0].tokens == (*before, *kept, *after)


def test_what_fits_of_a_prompt_is_what_the_form_leaves_room_for() -> None:
    (sequence,) = FIM.prepare(replace(SPEC, prompt="a" * 5000, cut=Cut(None), max_tokens=90)).sequences
    assert (len(sequence.tokens), sequence.max_tokens) == (4096 - 90, 90)
    assert sequence.tokens[-5:] == (97, SUF, *b"yz", MID)


def test_a_marker_ends_the_middle() -> None:
    assert FIM.prepare(SPEC).sequences[0].sampling.stop_token_ids == (PRE, SUF, MID)


def test_a_marker_ends_the_middle_of_a_beam_too() -> None:
    """The middle marker is a letter here that the model says."""
    lab = Lab(FimTokenizer(middle=ord("w")))
    for beams in (None, Beams()):
        (done,) = [event for event in lab.complete(replace(request(max_tokens=6), beams=beams)) if isinstance(event, ChoiceDone)]
        assert (done.finish, done.tokens) == (Finish.EOS, 3), beams


def test_nothing_before_the_gap_is_a_prompt_too() -> None:
    (sequence,) = FIM.prepare(replace(SPEC, prompt="", echo=True)).sequences
    assert sequence.tokens == (BOS, PRE, SUF, *b"yz", MID)
    assert not sequence.echo, "there is nothing to echo"


@pytest.mark.fault("A17")
def test_a_model_without_markers_refuses_a_suffix_by_its_name() -> None:
    with pytest.raises(Unsupported, match="'suffix' needs a model with fill-in-the-middle tokens, and toy has none"):
        Lab(ToyTokenizer()).prepare(SPEC)


def test_the_echo_is_the_prompt_and_neither_markers_nor_suffix() -> None:
    """With and without log-probabilities, and with only the prompt's last tokens."""
    made = text(FIM.complete(request()))
    for wanted in ({}, {"logprobs": 1}, {"token_ids": True}):
        assert text(FIM.complete(request(echo=True, **wanted))) == "ab" + made
        assert text(FIM.complete(request(echo=True, echo_last=1, **wanted))) == "b" + made
        assert text(FIM.complete(request(echo=True, echo_last=9, **wanted))) == "ab" + made


@pytest.mark.parametrize("wanted", [{"prompt_ids": True}, {"shown": Shown(token_ids=True)}, {"shown": Shown(usage=True)}])
def test_the_ids_of_a_prompt_are_all_that_the_usage_counts(wanted: dict[str, Any]) -> None:
    first, *_, last = FIM.complete(request(**wanted))
    assert isinstance(first, ChoiceDelta) and isinstance(last, Finished)
    assert first.prompt == (BOS, PRE, *b"ab", SUF, *b"yz", MID)
    assert last.usage.prompt_tokens == len(first.prompt)


@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("size", [1, 12, 13, 14, 15, 30, 31, 300])
def test_log_probabilities_of_the_echo_are_those_at_their_places_in_the_form(size: int, max_tokens: int) -> None:
    """The whole form, sent as ids and echoed, is the oracle; asked twice, for the second time comes from the cache. The longest takes
    several steps, and from the cache too: what has been computed after the gap waits for the echo of what is before it."""
    prompt = ("abcdefghijklmnopqrstuvwxyz" * 12)[:size]
    form = (BOS, PRE, *prompt.encode(), SUF, *b"yz" * 20, MID)

    async def go() -> tuple[list[Event], ...]:
        engine = await FIM.start()
        served = service(engine)

        async def run(asked: CompletionRequest) -> list[Event]:
            return [event async for batch in (await served.prepare(asked)).events() for event in batch]

        try:
            asked = request(prompt, suffix="yz" * 20, echo=True, logprobs=2, max_tokens=max_tokens)
            whole = request(suffix="", prompts=(form,), echo=True, logprobs=2, max_tokens=max_tokens)
            return await run(asked), await run(asked), await run(whole), await run(asked)
        finally:
            await engine.close()

    first, again, oracle, after = asyncio.run(go())
    wanted = [(token.token, token.logprob) for token in entries(oracle)]
    kept = [*wanted[2 : 2 + size], *wanted[len(form) :]]
    for events in (first, again, after):
        assert [(token.token, token.logprob) for token in entries(events)] == kept
        assert [token.offset for token in entries(events)][:size] == list(range(size))
    assert isinstance(first[-1], Finished) and first[-1].usage.prompt_tokens == len(form)


def test_samples_of_a_gap_are_those_of_single_requests() -> None:
    sampling = Sampling(1.0, 1.0, 7)
    together = FIM.complete(request(n=3, sampling=sampling))
    for index in range(3):
        alone = FIM.complete(request(sampling=replace(sampling, seed=7 + index)))
        assert text([event for event in together if isinstance(event, ChoiceDelta) and event.index == index]) == text(alone)


@given(st.text(max_size=5), st.text(min_size=1, max_size=5), st.integers(0, 2), st.integers(0, 2))
def test_the_form_holds_both_texts_whole_whatever_the_tokenizer_adds(prompt: str, suffix: str, before: int, after: int) -> None:
    def encode(text: str) -> list[int]:
        return [*[300] * before, *text.encode("utf-8", "surrogatepass"), *[301] * after]

    form = Infill(PRE, SUF, MID, (300,) * before, after)
    tokens, start, end = form.join(prompt, form.own(encode(prompt)), suffix.encode("utf-8", "surrogatepass"))
    assert bytes(tokens[start:end]) == prompt.encode("utf-8", "surrogatepass")
    assert tokens[:start] == (*[300] * before, PRE)
    assert bytes(tokens[end + 1 : -1]) == suffix.encode("utf-8", "surrogatepass")
    assert (tokens[end], tokens[-1]) == (SUF, MID)
    assert EOS not in tokens
