"""Every control that a provider's page has, sent over HTTP: each token is the one that the numpy twin draws from the model's own logits.

The twin gets the logits from a runner of its own, which sees nothing of the server, and is told the same seed and position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np
import pytest
from tests.reference import sampling_twin as twin
from tests.server.live import serving
from tests.server.one import create_app
from tests.support.bundled import bundled_path
from tests.support.loading import native_loader
from tests.support.waiting import until

from quintet.backends.native.core.loader import PAGE, Loaded, Loader
from quintet.backends.native.core.types import F32, Batch
from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import EOS, toy_loader
from quintet.config import EngineConfig, ServerConfig
from quintet.inputs.tokenizer import Tokenizer
from quintet.server.asgi import ASGIApp

PROMPT = "The old man and the sea. The old man and the"
PAGES = 16
SEED = 1234


@dataclass
class Target:
    """A served model, and the same model to ask for logits.

    Args:
        eos: an end-of-sequence token.
        context: positions that the own runner has room for.
    """

    url: str
    model: Loaded[Tokenizer]
    eos: int

    def logits(self, tokens: list[int]) -> F32:
        """float32 [T, V], of the token after each of these."""
        count = np.array([len(tokens)], np.int32)
        table = np.arange(PAGES, dtype=np.int32)[None]
        batch = Batch(np.array(tokens, np.int32), count, np.zeros(1, np.int32), table, np.arange(len(tokens), dtype=np.int32))
        runner = self.model.runner
        return runner.logits(runner.forward(batch)).copy()

    def complete(self, dialect: str, **fields: Any) -> list[list[int]]:
        """The generated token ids of each choice."""
        body = {"prompt": self.model.tokenizer.encode(PROMPT), "seed": SEED, "max_tokens": 8, **fields}
        if dialect == "cerebras":
            body |= {"model": "m", "return_raw_tokens": True}
        else:
            body |= {"return_token_ids": True}
        answer = httpx2.post(f"{self.url}/{dialect}/v1/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
        return [choice["tokens" if dialect == "cerebras" else "token_ids"] for choice in choices]


def served(load: Callable[[], Loader[Tokenizer]], eos: Callable[[Loaded[Tokenizer]], int]) -> Iterator[Target]:
    def app() -> ASGIApp:
        config = EngineConfig(kv_bytes=64 << 20, batch_tokens=64)
        return create_app(Engine(load(), config), ServerConfig(), ("m",))

    with serving(app) as port:
        url = f"http://127.0.0.1:{port}"
        until(lambda: httpx2.get(f"{url}/health").status_code == 200)
        model = load()(lambda _: None)
        model.runner.allocate(PAGES)
        yield Target(url, model, eos(model))


@pytest.fixture(scope="module", params=["toy", "bundled"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    if request.param == "toy":
        yield from served(toy_loader, lambda _: EOS)
        return
    yield from served(lambda: native_loader(bundled_path(), threads=2, context=PAGES * PAGE), lambda model: min(model.tokenizer.eos_ids))


CONTROLS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("fireworks", {"temperature": 1.6}, {}),
    ("fireworks", {"temperature": 0}, {}),
    ("fireworks", {"top_p": 0.6}, {}),
    ("fireworks", {"top_k": 3}, {}),
    ("fireworks", {"min_p": 0.2}, {"min_probability": 0.2}),
    ("fireworks", {"typical_p": 0.5}, {"typical_p": 0.5, "typical_within": True}),
    ("fireworks", {"repetition_penalty": 1.8}, {}),
    ("fireworks", {"frequency_penalty": 1.7}, {}),
    ("fireworks", {"presence_penalty": -1.9}, {}),
    ("fireworks", {"mirostat_target": 3.0, "mirostat_lr": 0.5}, {"mirostat_target": np.log2(3.0), "mirostat_lr": 0.5}),
    ("fireworks", {"logit_bias": {"101": 4.5, "32": -100, "110": -2}}, {"logit_bias": [(101, 4.5), (32, -100.0), (110, -2.0)]}),
    ("fireworks", {"ignore_eos": True}, {}),
    ("fireworks", {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "frequency_penalty": 0.5, "repetition_penalty": 1.2}, {}),
    ("cerebras", {"min_tokens": 5}, {}),
    ("openai", {"frequency_penalty": 1.5, "presence_penalty": 0.5}, {}),
    ("together", {"top_k": 4, "repetition_penalty": 1.5, "min_p": 0.05}, {}),
    ("novita", {"top_k": 4, "repetition_penalty": 1.5, "min_p": 0.05}, {}),
]
TELLS_IDS = ("fireworks", "cerebras")


def replay(target: Target, controls: dict[str, Any], seed: int, generated: list[int]) -> int:
    """Check each token of a choice against the twin; how many could be told apart from a draw that rounding decides."""
    prompt, pieces = target.model.tokenizer.encode(PROMPT), list(target.model.tokenizer.pieces)
    rows = target.logits(prompt + generated)
    seen = twin.TwinSampler({"seed": seed, **controls}, tuple(prompt), [], pieces)
    certain = 0
    for index, token in enumerate(generated):
        row, position = rows[len(prompt) - 1 + index], len(prompt) + index
        expected = twin.sample(row, seen, position)
        if expected.margin > 1e-5:
            assert token == expected.token
            certain += 1
        twin.learn(row, seen, position, token)
    return certain


@pytest.mark.fault("A09")
@pytest.mark.parametrize(("dialect", "fields", "controls"), [one for one in CONTROLS if one[0] in TELLS_IDS], ids=str)
def test_every_token_is_the_twins_draw_from_the_models_logits(
    target: Target, dialect: str, fields: dict[str, Any], controls: dict[str, Any]
) -> None:
    choices = target.complete(dialect, n=6 if dialect == "fireworks" else 1, **fields)
    known = {"eos_ids": sorted(target.model.tokenizer.eos_ids), **(controls or fields)}
    certain = [replay(target, known, SEED + index, generated) for index, generated in enumerate(choices)]
    assert sum(certain) >= 0.6 * sum(map(len, choices)), "hot rows of 49,000 tokens have boundaries everywhere; most have not"


def test_controls_change_what_comes_out(target: Target) -> None:
    plain = target.complete("fireworks", n=6)
    same = [fields for dialect, fields, _ in CONTROLS if dialect == "fireworks" and target.complete(dialect, n=6, **fields) == plain]
    assert same in ([], [{"ignore_eos": True}]), "the end need not come up in these few tokens"


@pytest.mark.parametrize(("dialect", "fields", "_"), [one for one in CONTROLS if one[0] not in TELLS_IDS], ids=str)
def test_other_dialects_give_the_same_text_for_the_same_controls(target: Target, dialect: str, fields: dict[str, Any], _: object) -> None:
    def text(where: str) -> str:
        body = {"model": "m", "prompt": PROMPT, "seed": SEED, "max_tokens": 8, "temperature": 1.0, **fields}
        answer = httpx2.post(f"{target.url}/{where}/v1/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    assert text(dialect) == text("fireworks")


def test_min_tokens_hold_the_end_back_and_ignore_eos_goes_on_after_it(target: Target) -> None:
    soon = {"logit_bias": {str(target.eos): 60}, "temperature": 0}
    assert len(target.complete("fireworks", **soon)[0]) <= 1
    assert target.complete("fireworks", ignore_eos=True, **soon)[0] == [target.eos] * 8
    assert 4 <= len(target.complete("cerebras", min_tokens=4, **soon)[0]) <= 5
    assert len(target.complete("cerebras", min_tokens=-1, **soon)[0]) == 8


@pytest.mark.fault("A06")
def test_ids_outside_the_vocabulary_are_a_400_that_names_the_field(target: Target) -> None:
    vocab = target.model.runner.vocab
    for dialect in ("fireworks", "openai", "together", "novita", "cerebras"):
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 1, "logit_bias": {str(vocab): 1}}
        answer = httpx2.post(f"{target.url}/{dialect}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 400
        assert "logit_bias" in answer.text
        assert str(vocab - 1) in answer.text
