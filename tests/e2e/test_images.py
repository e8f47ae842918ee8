"""Images, from prepared pixels to tokens: the whole engine against transformers, and under everything that must change no bit."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from tests.e2e.test_serve_command import Served
from tests.reference.as_gguf import write_gguf
from tests.reference.as_mmproj import write_mmproj
from tests.reference.folders import Source, write_tokenizer
from tests.reference.transformers_vision import GREEDY, IMAGE, Pixels, SeeingModel, models, seen
from tests.support.loading import native_loader

from quintet.backends.native.core.cpu import isas
from quintet.backends.native.core.loader import Loader
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.native.draft.drafter import Drafter
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.process import ProcessLink
from quintet.backends.native.wire.sources import ModelSource
from quintet.backends.native.worker.load import load_tokenizer
from quintet.config import EngineConfig, KvType, Quantize
from quintet.events import Finish, TokenEvent
from quintet.inputs.images.value import PreparedImage
from quintet.inputs.sequence import Prepared, PreparedSequence
from quintet.inputs.tokenizer import Tokenizer
from quintet.request import Sampling

NAMES = list(models())
CONTEXT = 256
KV = 1 << 20


def images_of(tiny: SeeingModel, pixels: Sequence[Pixels] | None = None) -> tuple[PreparedImage, ...]:
    """As the front prepares them."""
    found = []
    for one, places in zip(pixels or tiny.images(), tiny.places(), strict=True):
        first, last = places[0], places[-1]
        span = first[0], last[0] + last[1] - first[0]
        digest = hashlib.sha256(one.tobytes()).digest()
        found.append(PreparedImage(digest, tuple(places), span, (len(one), one.shape[1], one.shape[2]), one.tobytes()))
    return tuple(found)


def sequence(tiny: SeeingModel, count: int = GREEDY, **changes: Any) -> PreparedSequence:
    prompt = tuple(tiny.prompt().tolist())
    plain = PreparedSequence(prompt, count, Sampling(0.0, 1.0, 0), 3, echo=False, images=images_of(tiny))
    return replace(plain, **changes)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes a model's folder, once."""

    @cache
    def write(name: str) -> Path:
        folder = models()[name].write(tmp_path_factory.mktemp(name))
        write_tokenizer(folder, Source(write_gguf(tmp_path_factory.mktemp("tokens") / "tokens.gguf", models()[name].text())))
        return folder

    return write


def loader(folder: Path, threads: int = 2, quantize: Quantize = "none", isa: str = "", kv_type: KvType = "f16") -> Loader[Tokenizer]:
    return native_loader(folder, threads=threads, context=CONTEXT, isa=isa, quantize=quantize, vision=folder, kv_type=kv_type)


def generate(
    model: Loader[Tokenizer] | ProcessLink, requests: Sequence[Sequence[PreparedSequence]], *, together: bool = True, **config: Any
) -> list[list[list[TokenEvent]]]:
    """The events of each request's sequences; all at once, or one after the other on one engine."""

    async def one(engine: Engine, number: int, sequences: Sequence[PreparedSequence]) -> list[list[TokenEvent]]:
        events: list[list[TokenEvent]] = [[] for _ in sequences]
        async for batch in engine.submit(Prepared(number, tuple(sequences))):
            for event in batch:
                events[event.seq].append(event)
        return events

    async def run() -> list[list[list[TokenEvent]]]:
        engine = Engine(model, EngineConfig(**{"kv_bytes": KV, **config}))
        try:
            for _ in range(1200):
                if engine.health().state.value == "ready":
                    break
                assert engine.failure is None, engine.failure
                await asyncio.sleep(0.05)
            if together:
                return await asyncio.gather(*(one(engine, number, each) for number, each in enumerate(requests)))
            return [await one(engine, number, each) for number, each in enumerate(requests)]
        finally:
            await engine.close()

    return asyncio.run(run())


def tokens(events: Sequence[TokenEvent]) -> list[int]:
    assert events[-1].finish is Finish.LENGTH, events[-1]
    return [event.token for event in events if not event.prompt]


Told = tuple[int, float | None, object]


def told(events: Sequence[TokenEvent]) -> list[Told]:
    return [(event.token, event.logprob, event.top) for event in events]


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_goes_on_as_transformers_does(name: str, folder_of: Callable[[str], Path]) -> None:
    [[events]] = generate(loader(folder_of(name)), [[sequence(models()[name])]])
    theirs = seen(name)
    assert tokens(events) == theirs.tokens[-GREEDY:].tolist()
    chosen = theirs.rows[-GREEDY - 1 : -1][np.arange(GREEDY), theirs.tokens[-GREEDY:]]
    np.testing.assert_allclose(np.array([event.logprob for event in events], np.float32), chosen, atol=0.03)


@pytest.mark.parametrize("name", NAMES)
def test_a_gguf_file_with_its_mmproj_file_in_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    tiny = models()[name]
    model = write_gguf(tmp_path / "model.gguf", tiny.text())
    mmproj = write_mmproj(tmp_path / "mmproj-model.gguf", tiny)
    source = ModelSource(path=str(model), threads=1, context=CONTEXT, name=name, quantize="none", vision=str(mmproj))
    link = ProcessLink(source, lambda: load_tokenizer(model), EngineConfig(kv_bytes=KV))
    [[events]] = generate(link, [[sequence(tiny)]])
    assert tokens(events) == seen(name).tokens[-GREEDY:].tolist()


# ---- the numerics contract: what an image is seen as depends on its pixels and the tokens before it, and on nothing else

TEXT = PreparedSequence(tuple(range(3, 90)), 60, Sampling(0.0, 1.0, 0), None, echo=False)


@pytest.fixture(scope="module", params=NAMES)
def subject(request: pytest.FixtureRequest, folder_of: Callable[[str], Path]) -> tuple[SeeingModel, Path, list[Told]]:
    """A model, its folder, and what it says alone, on one thread, in 8 bits."""
    tiny, folder = models()[request.param], folder_of(request.param)
    [[events]] = generate(loader(folder, 1, "q8"), [[sequence(tiny)]])
    return tiny, folder, told(events)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("isa", isas())
def test_threads_and_instruction_sets_change_nothing(subject: tuple[SeeingModel, Path, list[Told]], isa: str, threads: int) -> None:
    tiny, folder, alone = subject
    [[events]] = generate(loader(folder, threads, "q8", isa), [[sequence(tiny)]])
    assert told(events) == alone


@pytest.mark.parametrize("batch_tokens", [7, 16, 37])
def test_chunks_and_company_change_nothing(subject: tuple[SeeingModel, Path, list[Told]], batch_tokens: int) -> None:
    """Others decode and prefill beside it, with the same images and with others; a step holds less than an image has tokens."""
    tiny, folder, alone = subject
    mirrored = [np.ascontiguousarray(one[:, :, ::-1]) for one in tiny.images()]
    others = sequence(tiny, images=images_of(tiny, mirrored), salt=b"another")
    found = generate(loader(folder, 2, "q8"), [[TEXT], [others], [sequence(tiny)], [TEXT, sequence(tiny)]], batch_tokens=batch_tokens)
    assert told(found[2][0]) == told(found[3][1]) == alone
    assert told(found[1][0]) != alone, "other pixels are another prompt"


def test_what_the_prefix_cache_holds_is_found_by_the_images_and_changes_nothing(subject: tuple[SeeingModel, Path, list[Told]]) -> None:
    """Prompts of the same tokens: the same images, another second one, and another salt."""
    tiny, folder, alone = subject
    first, second = tiny.images()
    another = sequence(tiny, images=images_of(tiny, [first, 255 - second]))
    asked = [[sequence(tiny)], [sequence(tiny)], [another], [sequence(tiny, salt=b"x")]]
    found = [events for [events] in generate(loader(folder, 2, "q8"), asked, together=False)]
    page = 16
    whole, begins = (len(tiny.prompt()) - 1) // page * page, tiny.places()[1][0][0] // page * page
    assert [events[-1].cached_tokens for events in found] == [0, whole, begins, 0]
    assert told(found[0]) == told(found[1]) == told(found[3]) == alone
    [[fresh]] = generate(loader(folder, 1, "q8"), [[another]])
    assert told(found[2]) == told(fresh) != alone


def test_a_prefix_that_ends_within_an_image_is_gone_on_with(subject: tuple[SeeingModel, Path, list[Told]]) -> None:
    """A page in the middle of the first image is the last that two prompts share."""
    tiny, folder, alone = subject
    start, count = tiny.places()[0][0]
    short = tuple(tiny.prompt().tolist())[: start + count]
    images = images_of(tiny)[:1]
    cut = replace(images[0], places=images[0].places[:1], span=(start, count), shape=(1, *images[0].shape[1:]))
    cut = replace(cut, pixels=images[0].pixels[: len(images[0].pixels) // images[0].shape[0]])
    if images[0].shape[0] > 1:
        cut = replace(cut, digest=b"one tile".ljust(32))
    asked = [[sequence(tiny, 1, tokens=short, images=(cut,))], [sequence(tiny)]]
    found = [events for [events] in generate(loader(folder, 2, "q8"), asked, together=False)]
    assert told(found[1]) == alone
    assert found[1][-1].cached_tokens == (16 if images[0].shape[0] == 1 else 0)


def test_samples_share_their_prompt_and_its_images(subject: tuple[SeeingModel, Path, list[Told]]) -> None:
    tiny, folder, alone = subject
    drawn = [sequence(tiny, sampling=Sampling(1.0, 1.0, seed)) for seed in range(3)]
    [together] = generate(loader(folder, 2, "q8"), [[sequence(tiny), *drawn]])
    assert told(together[0]) == alone
    for one, events in zip(drawn, together[1:], strict=True):
        [[by_itself]] = generate(loader(folder, 1, "q8"), [[one]])
        assert told(events) == told(by_itself)


def test_preempted_sequences_see_their_images_again(subject: tuple[SeeingModel, Path, list[Told]]) -> None:
    """Pages for little more than one of three: the newest are computed again and again."""
    tiny, folder, alone = subject
    page = loader(folder, 1, "q8")(lambda _: None).runner.page_bytes
    salted = [[sequence(tiny, salt=bytes([number]))] for number in range(3)]
    found = generate(loader(folder, 2, "q8"), salted, kv_bytes=12 * page)
    assert all(told(events) == alone for [events] in found)


def test_with_keys_and_values_in_8_bits_company_and_preemption_change_nothing_either(subject: tuple[SeeingModel, Path, list[Told]]) -> None:
    tiny, folder, sixteen = subject
    [[alone]] = generate(loader(folder, 1, "q8", kv_type="q8"), [[sequence(tiny)]])
    page = loader(folder, 1, "q8", kv_type="q8")(lambda _: None).runner.page_bytes
    salted = [[sequence(tiny, salt=bytes([number]))] for number in range(3)]
    found = generate(loader(folder, 2, "q8", kv_type="q8"), salted, kv_bytes=12 * page, batch_tokens=37)
    assert all(told(events) == told(alone) for [events] in found)
    assert told(alone) != sixteen


def test_penalties_and_drafts_pass_over_images(subject: tuple[SeeingModel, Path, list[Told]], monkeypatch: pytest.MonkeyPatch) -> None:
    """What they are made of is the prompt's text."""
    tiny, folder, alone = subject
    prompts: list[tuple[int, ...]] = []
    make, draft = NativeSamplers.make, Drafter.__init__

    def made(self: NativeSamplers, sampling: Sampling, bad_words: Sequence[Sequence[int]], prompt: Sequence[int]) -> Any:
        prompts.append(tuple(prompt))
        return make(self, sampling, bad_words, prompt)

    def drafting(self: Drafter, prompt: Sequence[int], prediction: Sequence[int] = ()) -> None:
        prompts.append(tuple(prompt))
        draft(self, prompt, prediction)

    monkeypatch.setattr(NativeSamplers, "make", made)
    monkeypatch.setattr(Drafter, "__init__", drafting)
    [[events]] = generate(loader(folder, 2, "q8"), [[sequence(tiny)]])
    text = tuple(token for token in tiny.prompt().tolist() if token != IMAGE)
    assert prompts == [text, text]
    assert told(events) == alone


def test_nothing_is_scored_at_an_image(subject: tuple[SeeingModel, Path, list[Told]]) -> None:
    tiny, folder, alone = subject
    [[events]] = generate(loader(folder, 2, "q8"), [[sequence(tiny, echo=True)]], batch_tokens=20)
    echoed = [event for event in events if event.prompt]
    assert [event.token for event in echoed] == tiny.prompt().tolist()
    places = {at for runs in tiny.places() for start, count in runs for at in range(start, start + count)}
    assert {at for at, event in enumerate(echoed) if event.logprob is None} == places | {0}
    assert told([event for event in events if not event.prompt]) == alone


def test_an_image_of_a_wrong_size_ends_its_request_and_no_other(subject: tuple[SeeingModel, Path, list[Told]]) -> None:
    tiny, folder, alone = subject
    images = images_of(tiny)
    wrong = sequence(tiny, images=(replace(images[0], digest=b"wrong".ljust(32), pixels=images[0].pixels[:-7]), images[1]), salt=b"x")
    [[bad], [good]] = generate(loader(folder, 2, "q8"), [[wrong], [sequence(tiny)]])
    assert bad[-1].finish is Finish.ERROR
    assert told(good) == alone


# ---- over HTTP

WORDS = {
    "idefics3": {263: "<fake_token_around_image>", 264: "<global-img>", IMAGE: "<image>"},
    "gemma3": {263: "<start_of_image>", 264: "<end_of_image>", IMAGE: "<image_soft_token>"},
}


def name_tokens(folder: Path, words: dict[int, str]) -> None:
    """Give tokens of the folder's vocabulary that have no text the texts of a model's tokens for images."""
    document = json.loads((folder / "tokenizer.json").read_text())
    texts = {number: words.get(number, f"<unused{number}>") for number in range(263, 277)}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    document["added_tokens"] += [{"id": number, "content": text, "special": True, **plain} for number, text in texts.items()]
    (folder / "tokenizer.json").write_text(json.dumps(document))


@pytest.mark.parametrize("name", NAMES)
def test_a_served_model_sees_what_a_client_of_fireworks_sends(name: str, tmp_path: Path, folder_of: Callable[[str], Path]) -> None:
    """A picture of a tile's size is one tile, pixel by pixel: what the engine is given directly."""
    tiny, folder = models()[name], tmp_path / "model"
    shutil.copytree(folder_of(name), folder)
    name_tokens(folder, WORDS[name])
    pixels = tiny.images()[0][:1]
    picture = io.BytesIO()
    PIL.Image.fromarray(pixels[0]).save(picture, "PNG")
    url = "data:image/png;base64," + base64.b64encode(picture.getvalue()).decode()
    laid = (263, 264, *(IMAGE,) * tiny.tokens_of_tile, 263) if name == "idefics3" else (263, *(IMAGE,) * tiny.tokens_of_tile, 264)
    around = "" if name == "idefics3" else "\n\n"
    encode = load_tokenizer(folder).encode
    before, after = encode(f"See {around}"), encode(f"{around} now")
    places = ((len(before) + laid.index(IMAGE), tiny.tokens_of_tile),)
    image = PreparedImage(b"", places, (len(before), len(laid)), (1, tiny.tile, tiny.tile), pixels.tobytes())
    direct = sequence(tiny, 6, tokens=(*before, *laid, *after), images=(image,), sampling=Sampling(0.0, 1.0, 0))
    [[events]] = generate(loader(folder, 1, "q8"), [[direct]])
    body = {"prompt": "See <image> now", "images": [url], "max_tokens": 6, "temperature": 0, "logprobs": 0, "ignore_eos": True}
    served = Served(str(folder), "--threads", "2", "--kv-cache", "4MiB", "--image-longest-edge", str(tiny.tile))
    try:
        status, said = served.send("/fireworks/inference/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        assert status == 200, said
        answer = json.loads(said)
        assert answer["usage"]["prompt_tokens"] == len(before) + len(laid) + len(after)
        expected = np.array([event.logprob for event in events], np.float32)
        np.testing.assert_allclose(answer["choices"][0]["logprobs"]["token_logprobs"][: len(expected)], expected, rtol=1e-6)
        blind, refused = served.send(
            "/fireworks/inference/v1/completions", json.dumps({**body, "prompt": "See now"}).encode(), {"Content-Type": "application/json"}
        )
        assert (blind, "images" in refused.decode()) == (400, True)
    finally:
        served.end(signal.SIGTERM)
