"""Fireworks' ``images`` over HTTP, on an engine that sees them and says which."""

from __future__ import annotations

import asyncio
import json
import logging
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from tests.inputs.images.pictures import data_url, file
from tests.server.asgi import SOURCE, Answer, acall
from tests.server.one import create_app
from tests.support.seeing import GEMMA, IDS, ROWS, SeeingBackend, SeeingTokenizer

from quintet.config import ServerConfig
from quintet.inputs.images.expansion import ProcessorTraits
from quintet.inputs.images.layout import ImageTraits
from quintet.inputs.images.reader import ImageReader
from quintet.inputs.tokenizer import Tokenizer
from quintet.models.traits import Traits
from quintet.server.asgi import Message

PNG = data_url(file(40, 30))
OTHER = data_url(file(30, 40, "JPEG"), "image/jpeg")
PATH = "/fireworks/inference/v1/completions"
PLACE = IDS["<image>"]


def ask(backend: SeeingBackend, *bodies: dict[str, Any], path: str = PATH, **config: Any) -> list[Answer]:
    """Each after the other, of one server."""

    async def go() -> list[Answer]:
        app = create_app(backend, ServerConfig(**config), ("accounts/fireworks/models/llama-v3p1-8b-instruct",), source=SOURCE)
        try:
            return [await acall(app, {"max_tokens": 40, **body}, path=path) for body in bodies]
        finally:
            await backend.close()

    return asyncio.run(go())


def told(answer: Answer) -> Any:
    assert answer.status == 400, answer.body
    return answer.json()["error"]


PAGE: dict[str, Any] = {
    "model": "accounts/fireworks/models/llama-v3p1-8b-instruct", "prompt": "<image>The sky is", "images": [PNG], "max_tokens": 16,
    "echo_last": 1, "temperature": 1, "top_p": 1, "top_k": 50, "frequency_penalty": 0, "perf_metrics_in_response": False,
    "presence_penalty": 0, "repetition_penalty": 1, "reasoning_effort": "none", "mirostat_lr": 0.1, "mirostat_target": 123, "n": 1,
    "ignore_eos": False, "stop": "<string>", "response_format": None, "stream": False, "context_length_exceeded_behavior": "truncate",
    "logprobs": True, "top_logprobs": None, "echo": False, "min_p": 0, "typical_p": 1, "logit_bias": {}, "user": "<string>",
}  # fmt: skip


def test_props_promise_no_vision_as_long_as_llama_servers_route_takes_no_pictures() -> None:
    async def go() -> tuple[Answer, Answer]:
        backend = SeeingBackend()
        app = create_app(backend, ServerConfig(), source=SOURCE)
        try:
            prompt = {"prompt_string": "<__media__>", "multimodal_data": [PNG]}
            return await acall(app, None, method="GET", path="/props"), await acall(app, {"prompt": prompt}, path="/completion")
        finally:
            await backend.close()

    props, answer = asyncio.run(go())
    assert (props.json()["modalities"]["vision"], answer.status) == (False, 501)


def test_the_pages_example_with_an_image_for_its_placeholder() -> None:
    """The page has ``"images": ["<string>"]``, which stands for one, and forgets its place in the prompt; the rest is as it stands."""
    (answer,) = ask(SeeingBackend(), PAGE)
    assert answer.status == 200, answer.body
    body = answer.json()
    assert body["choices"][0]["text"].startswith("ssaw ") and body["model"] == PAGE["model"]
    asis, bare = (told(one) for one in ask(SeeingBackend(), {**PAGE, "images": ["<string>"]}, {**PAGE, "prompt": "The sky is"}))
    assert asis["param"] == "images[0]" and bare["param"] == "images"


def test_an_answer_depends_on_the_picture_and_not_on_how_it_is_written() -> None:
    again = data_url(file(40, 30, "BMP"), "image/png")  # what it is, its bytes tell
    answers = ask(SeeingBackend(), *({"prompt": "<image>", "images": [url]} for url in (PNG, OTHER, again)))
    first, other, same = (answer.json()["choices"][0]["text"] for answer in answers)
    assert first == same != other


def test_image_tokens_count_as_tokens_of_the_prompt() -> None:
    backend = SeeingBackend()
    (answer,) = ask(backend, {"prompt": "a<image>b", "images": [PNG]})
    (sequence,) = backend.submitted[0].sequences
    assert answer.json()["usage"]["prompt_tokens"] == len(sequence.tokens)
    places = [at for at, token in enumerate(sequence.tokens) if token == PLACE]
    (image,) = sequence.images
    assert [at for first, count in image.places for at in range(first, first + count)] == places
    assert len(places) == 4 * image.shape[0] and image.shape == (len(image.places), 32, 32)
    assert sequence.tokens[0] == ord("a") and sequence.tokens[-1] == ord("b") and image.span == (1, len(sequence.tokens) - 2)


@pytest.mark.parametrize("traits", [SeeingBackend.traits, ROWS])
def test_a_prompt_that_begins_with_its_own_bos_gets_no_second_one(traits: ImageTraits | ProcessorTraits | None) -> None:
    """As none without images does: the template of a model that sees begins with it."""
    bos = IDS["<start_of_image>"]  # a control token whose text is known

    class Begins(SeeingTokenizer):
        def __init__(self) -> None:
            super().__init__()
            self.traits = Traits(added=(1, 0))

        def encode(self, text: str) -> list[int]:
            return [bos, *super().encode(text)]

        def encode_inside(self, text: str) -> list[int]:
            return super().encode(text)

    class Backend(SeeingBackend):
        @property
        def tokenizer(self) -> Tokenizer:
            return Begins()

    backend = Backend(traits)
    written, plain = ask(backend, *({"prompt": f"{begin}a<image>b", "images": [PNG]} for begin in ("<start_of_image>", "")))
    assert (written.status, plain.status) == (200, 200), written.body
    first, second = (prepared.sequences[0].tokens for prepared in backend.submitted)
    assert first == second and first[:2] == (bos, ord("a"))


@pytest.mark.parametrize("traits", [SeeingBackend.traits, GEMMA, ROWS])
@pytest.mark.parametrize("prompt", ["<image>", "a <image>\n\nb", "\n<image>\n<image>\n\n\n", "<image><image>", "x\n\n<image>"])
def test_an_echo_is_the_prompt_as_it_was_written_and_offsets_go_by_it(prompt: str, traits: ImageTraits | ProcessorTraits | None) -> None:
    """Of an image's tokens the first has the mark's text; the others have a name, as control tokens have, and no text.

    What is at its places has no log-probability: 0.0, as Fireworks' first token.
    """
    backend = SeeingBackend(traits)
    asked = {"prompt": prompt, "images": [PNG] * prompt.count("<image>"), "echo": True, "max_tokens": 3}
    plain, listed = ask(backend, asked, {**asked, "logprobs": 0, "return_token_ids": True})
    assert plain.json()["choices"][0]["text"] == prompt + "saw"
    choice = listed.json()["choices"][0]
    entries, ids = choice["logprobs"], choice["prompt_token_ids"]
    assert choice["text"] == prompt + "saw" and entries["token_ids"][: len(ids)] == ids
    texts = [choice["text"][start:end] for start, end in pairwise([*entries["text_offset"], None])]
    assert "".join(texts) == choice["text"] and [text for text in texts if "<" in text] == ["<image>"] * prompt.count("<image>")
    assert all(text in ("", token) for text, token in zip(texts, entries["tokens"], strict=True) if token != "<image_soft_token>")
    (sequence,) = backend.submitted[-1].sequences
    assert [texts[image.span[0]] for image in sequence.images] == ["<image>"] * len(sequence.images)
    silent = {at for image in sequence.images for first, count in image.places for at in range(first, first + count)}
    assert {at for at, logprob in enumerate(entries["token_logprobs"][: len(ids)]) if logprob == 0.0} == silent
    assert {entries["tokens"][at] for at in silent} == {"<image>" if traits is SeeingBackend.traits else "<image_soft_token>"}


def test_echo_last_counts_the_tokens_of_images() -> None:
    backend = SeeingBackend()
    asked = {"prompt": "ab<image>cd", "images": [PNG], "max_tokens": 1}
    lasts = (1, 2, 3, 30, 200)
    answers = ask(backend, *({**asked, "echo_last": last, "logprobs": 0} for last in lasts))
    texts = [answer.json()["choices"][0]["text"] for answer in answers]
    assert texts == ["ds", "cds", "cds", "cds", "ab<image>cds"]
    for answer, last in zip(answers, lasts, strict=True):
        length = len(backend.submitted[0].sequences[0].tokens)
        assert len(answer.json()["choices"][0]["logprobs"]["tokens"]) == 1 + min(last, length)


def test_token_ids_hold_the_models_own_token_once_for_each_image() -> None:
    backend = SeeingBackend()
    words, ids = ask(
        backend, {"prompt": "a<image>b", "images": [PNG]}, {"prompt": [97, PLACE, 98], "images": [PNG], "echo": True, "logprobs": 0}
    )
    assert backend.submitted[0].sequences[0].tokens == backend.submitted[1].sequences[0].tokens
    choice = ids.json()["choices"][0]
    assert choice["text"] == "a<image>b" + words.json()["choices"][0]["text"]
    assert choice["logprobs"]["text_offset"][1:3] == [1, 8] and choice["logprobs"]["tokens"][0] == "a"


@pytest.mark.parametrize(
    ("traits", "mark"), [(SeeingBackend.traits, "<image>"), (GEMMA, "<image_soft_token>"), (ROWS, "<image_soft_token>")]
)
def test_an_echo_of_token_ids_gives_each_image_the_text_of_its_own_token(traits: ImageTraits | ProcessorTraits | None, mark: str) -> None:
    """Also where two are beside each other, or where the prompt has itself what is put around one."""
    backend = SeeingBackend(traits)
    ids = [97, IDS["\n\n"], IDS[mark], IDS[mark], IDS["\n\n"], 98, IDS[mark]]
    (answer,) = ask(backend, {"prompt": ids, "images": [PNG] * 3, "echo": True, "logprobs": 0, "max_tokens": 1})
    choice = answer.json()["choices"][0]
    texts = [choice["text"][start:end] for start, end in pairwise([*choice["logprobs"]["text_offset"], None])]
    assert [text for text in texts if text] == ["a", "\n\n", mark, mark, "\n\n", "b", mark, "s"]
    (sequence,) = backend.submitted[0].sequences
    assert [texts[image.span[0]] for image in sequence.images] == [mark] * 3


def test_images_are_dealt_out_over_prompts_or_given_to_each() -> None:
    prompts = ["<image>", "none", "<image> and <image>"]
    backend = SeeingBackend()
    dealt, apart = ask(backend, {"prompt": prompts, "images": [PNG, OTHER, PNG]}, {"prompt": prompts, "images": [[PNG], [], [OTHER, PNG]]})
    texts = [choice["text"] for choice in dealt.json()["choices"]]
    assert texts == [choice["text"] for choice in apart.json()["choices"]]
    assert texts[1] == "saw" and texts[2].split()[2] == texts[0].split()[1] != texts[2].split()[1]


def test_samples_share_one_image() -> None:
    backend = SeeingBackend()
    (answer,) = ask(backend, {"prompt": "<image>", "images": [PNG], "n": 3})
    assert len({choice["text"] for choice in answer.json()["choices"]}) == 1
    assert len({id(sequence.images[0]) for sequence in backend.submitted[0].sequences}) == 1


def test_a_stream_is_the_same() -> None:
    plain, streamed = ask(SeeingBackend(), {"prompt": "<image>", "images": [PNG]}, {"prompt": "<image>", "images": [PNG], "stream": True})
    chunks = [json.loads(line.removeprefix("data: ")) for line in streamed.body.decode().split("\n\n") if line and "[DONE]" not in line]
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == plain.json()["choices"][0]["text"]
    assert chunks[-1]["usage"] == plain.json()["usage"]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": "x", "images": [PNG]}, "images", "1 for 0"),
    ({"prompt": "<image><image>", "images": [PNG]}, "images", "1 for 2"),
    ({"prompt": "<image>"}, "prompt", "without images"),
    ({"prompt": [97, PLACE]}, "prompt", "without images"),
    ({"prompt": [97, PLACE, PLACE], "images": [PNG]}, "images", "1 for 2"),
    ({"prompt": ["a", "<image>"], "images": [PNG, PNG]}, "images", "2 for 1"),
    ({"prompt": ["<image>", "b"], "images": [[PNG]]}, "images", "a list for each prompt"),
    ({"prompt": [[PLACE], [97]], "images": [PNG]}, "images", "a list for each prompt"),
    ({"prompt": "<image>", "images": [PNG] * 31}, "images", "at most 30"),
    ({"prompt": "<image>", "images": ["data:image/png;base64," + "A" * 11_000_000]}, "images", "10485760"),
    ({"prompt": "<image>", "images": [[7]]}, "images[0][0]", "a string"),
    ({"prompt": "<image>", "images": [{"url": "data:image/png;base64,AAAA"}]}, "images[0]", "strings, got 1 members"),
    ({"prompt": "<image>", "images": [[{"url": "data:image/png;base64,AAAA"}]]}, "images[0][0]", "a string, got 1 members"),
    ({"prompt": "<image>", "images": {"url": "data:image/png;base64,AAAA"}}, "images", "of strings, got 1 members"),
    ({"prompt": "<image>", "images": "data:image/png;base64,AAAA"}, "images", "got 26 characters"),
    ({"prompt": "<image>", "images": ["AAAA"]}, "images[0]", "data URL"),
    ({"prompt": "<image>", "images": ["file:///etc/passwd"]}, "images[0]", "data URL"),
    ({"prompt": "<image>", "images": ["data:image/png,AAAA"]}, "images[0]", "base64"),
    ({"prompt": "<image>", "images": ["data:image/png;base64"]}, "images[0]", "base64"),
    ({"prompt": "<image>", "images": ["data:text/html;base64,AAAA"]}, "images[0]", "base64"),
    ({"prompt": "<image>", "images": ["data:image/png;base64,A"]}, "images[0]", "base64"),
    ({"prompt": "<image>", "images": ["data:image/png;base64,AA AA"]}, "images[0]", "base64"),
    ({"prompt": "<image>", "images": ["data:image/png;base64,"]}, "images[0]", "must be a PNG"),
    ({"prompt": "<image><image>", "images": [PNG, "data:image/png;base64,AAAA"]}, "images[1]", "must be a PNG"),
    ({"prompt": "<image>", "images": [["data:image/png;base64,AAAA"]]}, "images[0][0]", "must be a PNG"),
    ({"prompt": "<image>", "images": [data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml")]}, "images[0]", "PNG"),
    ({"prompt": "<image>", "images": [PNG[:-200]]}, "images[0]", "damaged"),
    ({"prompt": "<image>", "images": ["http://example.org/a.png"]}, "images[0]", "fetches no images"),
]


@pytest.mark.fault("A21", "A22")
def test_what_is_no_image_or_has_no_place_is_refused_by_name() -> None:
    """And the server goes on."""
    backend = SeeingBackend()
    *answers, last = ask(backend, *(body for body, _, _ in REFUSED), {"prompt": "<image>", "images": [PNG]})
    for answer, (_, param, rule) in zip(answers, REFUSED, strict=True):
        error = told(answer)
        assert error["param"] == param and rule in error["message"]
        assert len(error["message"]) < 300 and "AAAA" not in error["message"]
    assert last.status == 200 and len(backend.submitted) == 1


def test_the_tokens_of_images_count_for_the_context() -> None:
    many = {"prompt": "<image>" * 20, "images": [PNG] * 20}
    fits, long = ask(SeeingBackend(context=2048), many)[0], ask(SeeingBackend(context=1000), many)[0]
    assert fits.status == 200 and told(long)["code"] == "context_length_exceeded" and told(long)["param"] == "prompt"


def test_a_text_model_refuses_images_by_the_fields_name_and_takes_the_mark_for_text() -> None:
    images, text = ask(SeeingBackend(None), {"prompt": "<image>", "images": [PNG]}, {"prompt": "<image> is a tag", "images": []})
    assert told(images)["param"] == "images" and told(images)["code"] == "unsupported_parameter"
    assert text.status == 200


def test_a_model_whose_token_it_is_not_takes_the_mark_for_text_where_there_are_no_images() -> None:
    plain, own = ask(SeeingBackend(GEMMA), {"prompt": "<image>"}, {"prompt": "<image>, <image_soft_token>", "images": [PNG]})
    assert plain.status == 200 and told(own)["param"] == "prompt"


def test_a_model_that_sees_says_so_in_the_list() -> None:
    async def go(backend: SeeingBackend) -> Any:
        app = create_app(backend, ServerConfig(), ("m",), source=SOURCE)
        return (await acall(app, method="GET", path="/fireworks/inference/v1/models")).json()["data"][0]["supports_image_input"]

    assert asyncio.run(go(SeeingBackend())) is True and asyncio.run(go(SeeingBackend(None))) is False


@pytest.mark.fault("G01", "G04")
def test_no_byte_of_an_image_is_in_a_log_or_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = data_url(b"GIF89a CANARY" * 40, "image/gif")
    error = told(ask(SeeingBackend(), {"prompt": "<image>", "images": [secret]})[0])
    payload = secret.partition(",")[2]
    for text in (error["message"], caplog.text):
        assert payload[:12] not in text and "CANARY" not in text and "BytesIO" not in text


def test_a_client_that_leaves_while_its_images_are_read_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its body is short: an address may take seconds, and so may the pixels of few bytes."""
    ends: list[str] = []

    async def read(*_: object) -> None:
        try:
            await asyncio.sleep(3)
            ends.append("read")
        except asyncio.CancelledError:
            ends.append("called off")
            raise

    monkeypatch.setattr(ImageReader, "read", read)

    async def go() -> None:
        backend = SeeingBackend()
        body = {"prompt": "<image>", "images": [data_url(file(2, 2))]}
        answer = await acall(create_app(backend, ServerConfig(), ("m",), source=SOURCE), body, path=PATH, leave_after=0.1)
        assert not answer.complete and not backend.submitted and ends == ["called off"]
        await backend.close()

    asyncio.run(go())


@pytest.mark.fault("B17")
def test_nothing_of_an_images_file_stays_while_its_request_runs() -> None:
    """A file may be megabytes of what is no pixels, and a thousand requests may wait."""
    junk = file(40, 30) + bytes(1_000_000)  # what comes after the end is nobody's business

    async def go() -> int:
        backend = SeeingBackend()
        app = create_app(backend, ServerConfig(), ("m",), source=SOURCE)
        begun, over = asyncio.Event(), asyncio.Event()

        async def one() -> None:
            body = {"prompt": "<image>x", "images": [data_url(junk)], "max_tokens": 40, "stream": True}
            messages: list[Message] = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
            del body

            async def receive() -> Message:
                if messages:
                    return messages.pop()
                await over.wait()
                return {"type": "http.disconnect"}

            async def send(message: Message) -> None:
                if message["type"] == "http.response.start":
                    assert message["status"] == 200
                else:
                    begun.set()
                    await over.wait()

            await app({"type": "http", "method": "POST", "path": PATH, "headers": [(b"content-type", b"application/json")]}, receive, send)

        tracemalloc.start()
        try:
            running = asyncio.create_task(one())
            await begun.wait()
            for _ in range(1000):  # the thread that parsed the body lets go of it when it next runs, which may be after the answer began
                held = tracemalloc.get_traced_memory()[0]
                if held < 1_000_000:
                    break
                await asyncio.sleep(0.01)
        finally:
            tracemalloc.stop()
        over.set()
        await running
        await backend.close()
        return held

    assert asyncio.run(go()) < 1_000_000
