"""Each sampling control changes the distribution of what is drawn as its formula says: over HTTP, on the bundled model, in all dialects.

What is drawn is held to few tokens, and counted over 384 choices of 3 requests; what is expected comes from the model's own logits by the
formula of ``docs/sampling.md``, written out here once more. Chi-square with a false-alarm rate of 1e-6 for each test; the seeds are fixed,
so a test that passes once always passes. Each test also shows that without the control the counts would not fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import numpy as np
import numpy.typing as npt
import pytest
from tests.backends.native.core.test_sample import chi_square_excess
from tests.e2e.test_sampling_http import PAGES, Target, served
from tests.support.bundled import bundled_path
from tests.support.loading import native_loader

from quintet.backends.native.core.loader import PAGE

F64 = npt.NDArray[np.float64]
Outcomes = dict[tuple[int, ...], float]
"""Generated tokens -> probability."""
Formula = Callable[[F64], F64]
"""Logits of the allowed tokens -> probabilities."""

TEXT = "In the morning she opened the window and saw a"
CHOICES, REQUESTS = 128, 3
RANKS = (0, 1, 2, 4, 7, 11, 16, 25, 40, 60, 90, 140)
"""Of the allowed tokens among all, by probability: neither all alike nor one before all others."""


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    yield from served(lambda: native_loader(bundled_path(), threads=2, context=PAGES * PAGE), lambda model: min(model.tokenizer.eos_ids))


def after(target: Target, tokens: list[int]) -> F64:
    """Logits float64 [V] of the token after these."""
    made: F64 = target.logits(tokens)[-1].astype(np.float64)
    return made


def ranked(logits: F64, count: int = len(RANKS)) -> list[int]:
    order = np.argsort(-logits)
    return [int(order[rank]) for rank in RANKS[:count]]


def softmax(logits: F64) -> F64:
    weights = np.exp(logits - logits.max())
    made: F64 = weights / weights.sum()
    return made


def kept(probabilities: F64, keep: npt.NDArray[np.bool_]) -> F64:
    left = np.where(keep, probabilities, 0.0)
    made: F64 = left / left.sum()
    return made


def until(mass: float, probabilities: F64, order: npt.NDArray[np.int64]) -> F64:
    """Tokens in this order, as long as those before have less than ``mass``."""
    before = np.cumsum(probabilities[order]) - probabilities[order]
    keep = np.zeros(len(probabilities), bool)
    keep[order[before < mass]] = True
    return kept(probabilities, keep)


def top_p(logits: F64) -> F64:
    p = softmax(logits)
    return until(0.6, p, np.argsort(-p))


def typical_p(logits: F64) -> F64:
    p = softmax(logits)
    entropy = -(p * np.log(p)).sum()
    return until(0.5, p, np.argsort(np.abs(-np.log(p) - entropy)))


def min_p(logits: F64) -> F64:
    p = softmax(logits)
    return kept(p, p >= 0.3 * p.max())


def top_k(logits: F64) -> F64:
    return kept(softmax(logits), logits >= np.sort(logits)[-4])


def top_n_sigma(logits: F64) -> F64:
    return kept(softmax(logits), logits >= logits.max() - 1.2 * logits.std())


def xtc(logits: F64) -> F64:
    p = softmax(logits)
    top = p >= 0.08
    assert top.sum() >= 2
    return 0.4 * p + 0.6 * kept(p, ~top | (p == p[top].min()))


def mirostat(logits: F64) -> F64:
    p = softmax(logits)
    return kept(p, -np.log2(p) <= 2 * 1.4)


FILTERS: list[tuple[str, dict[str, Any], Formula]] = [
    ("novita", {"temperature": 0.4}, lambda logits: softmax(logits / 0.4)),
    ("cerebras", {"top_p": 0.6}, top_p),
    ("together", {"top_k": 4}, top_k),
    ("cerebras", {"min_p": 0.3}, min_p),
    ("together", {"typical_p": 0.5}, typical_p),
    ("openai", {"top_n_sigma": 1.2}, top_n_sigma),
    ("fireworks", {"xtc_probability": 0.6, "xtc_threshold": 0.08}, xtc),
    ("fireworks", {"mirostat_target": 2**1.4}, mirostat),
    ("openai", {"mirostat": 2, "mirostat_tau": 1.4}, mirostat),
    ("cerebras", {"temperature": 0.6, "top_k": 4, "min_p": 0.3}, lambda logits: min_p(np.where(top_k(logits) > 0, logits, -np.inf) / 0.6)),
]
"""Controls that look at the distribution alone."""


def counted(target: Target, dialect: str, prompt: list[int], allowed: list[int], **fields: Any) -> Counter[tuple[int, ...]]:
    """How often each answer came; a token is known by its text, and one without a text is not told from none."""
    texts = {target.model.tokenizer.pieces[token].decode(): token for token in allowed if target.model.tokenizer.pieces[token]}
    assert len(texts) + 1 >= len(allowed)
    found: Counter[tuple[int, ...]] = Counter()
    body = {"model": "m", "prompt": prompt, "n": CHOICES, "temperature": 1, "max_tokens": 1, "allowed_token_ids": allowed, **fields}
    if dialect == "together":
        body["prompt"] = TEXT  # it takes no token ids
    for request in range(REQUESTS):
        answer = httpx2.post(f"{target.url}/{dialect}/v1/completions", json={**body, "seed": request * CHOICES}, timeout=120)
        assert answer.status_code == 200, answer.text
        found.update(split(choice["text"], texts) for choice in answer.json()["choices"])
    assert found.total() == CHOICES * REQUESTS
    return found


def split(text: str, texts: dict[str, int]) -> tuple[int, ...]:
    """The tokens of a text, of which no other cut is possible here."""
    tokens = []
    while text:
        first = max((known for known in texts if text.startswith(known)), key=len)
        tokens.append(texts[first])
        text = text[len(first) :]
    return tuple(tokens)


def fits(found: Counter[tuple[int, ...]], expected: Outcomes) -> bool:
    """Chi-square, with the cells of fewer than five expected draws as one; what cannot come did not."""
    assert abs(sum(expected.values()) - 1) < 1e-9
    if any(not expected.get(outcome) for outcome in found):
        return False
    total = found.total()
    large = {outcome: p for outcome, p in expected.items() if p * total >= 5}
    rest = 1 - sum(large.values())
    counts = [found[outcome] for outcome in large]
    probabilities = list(large.values())
    if rest * total >= 5:
        counts, probabilities = [*counts, total - sum(counts)], [*probabilities, rest]
    return len(counts) == 1 or chi_square_excess(np.array(counts), np.array(probabilities) / sum(probabilities)) < 0


def outcomes(allowed: list[int], probabilities: F64) -> Outcomes:
    return {(token,): float(p) for token, p in zip(allowed, probabilities, strict=True)}


@pytest.mark.parametrize(("dialect", "fields", "formula"), FILTERS, ids=lambda value: str(value) if not callable(value) else "")
def test_filters(target: Target, dialect: str, fields: dict[str, Any], formula: Formula) -> None:
    prompt = target.model.tokenizer.encode(TEXT)
    logits = after(target, prompt)
    allowed = ranked(logits)
    found = counted(target, dialect, prompt, allowed, **fields)
    assert fits(found, outcomes(allowed, formula(logits[allowed])))
    assert not fits(found, outcomes(allowed, softmax(logits[allowed])))


def test_allowed_token_ids_and_the_models_own_log_probabilities(target: Target) -> None:
    """Nothing else is drawn, in the proportions that the answer's own log-probabilities say."""
    prompt = target.model.tokenizer.encode(TEXT)
    allowed = ranked(after(target, prompt))[1:6]
    answer = httpx2.post(f"{target.url}/cerebras/v1/completions", json={"model": "m", "prompt": prompt, "max_tokens": 1, "logprobs": 20})
    told = answer.json()["choices"][0]["logprobs"]["top_logprobs"][0]
    own = np.array([told[target.model.tokenizer.pieces[token].decode()] for token in allowed])
    for dialect in ("openai", "together"):
        assert fits(counted(target, dialect, prompt, allowed), outcomes(allowed, softmax(own)))


def test_biases_and_bans(target: Target) -> None:
    prompt = target.model.tokenizer.encode(TEXT)
    logits = after(target, prompt)
    allowed = ranked(logits)
    words = [target.model.tokenizer.pieces[token].decode() for token in allowed]
    biased = {allowed[5]: 1.5, allowed[0]: -1.25, allowed[2]: -100.0}
    bias = np.array([biased.get(token, 0.0) for token in allowed])
    found = counted(target, "together", prompt, allowed, logit_bias={str(token): value for token, value in biased.items()})
    assert fits(found, outcomes(allowed, softmax(logits[allowed] + np.where(bias == -100, -np.inf, bias))))
    bad = [word for word in words if word.startswith(" ")][:2]
    ban = np.array([-np.inf if word in bad else 0.0 for word in words])
    found = counted(target, "novita", prompt, allowed, bad_words=[word.strip() for word in bad])
    assert fits(found, outcomes(allowed, softmax(logits[allowed] + ban)))


def test_ends_are_held_back_and_ids_stop(target: Target) -> None:
    prompt = target.model.tokenizer.encode(TEXT)
    logits = after(target, prompt)
    allowed = [*ranked(logits, 5), target.eos]
    lift = float(logits[allowed[0]] - logits[target.eos])
    lifted = logits[allowed] + np.array([0.0] * 5 + [lift])
    fields: dict[str, Any] = {"logit_bias": {str(target.eos): lift}}
    free = {**outcomes(allowed[:5], softmax(lifted)[:5]), (): float(softmax(lifted)[5])}
    held = outcomes(allowed[:5], softmax(lifted[:5]))
    assert fits(counted(target, "openai", prompt, allowed, **fields), free)
    assert fits(counted(target, "novita", prompt, allowed, **fields, min_tokens=1), held)
    p = softmax(logits[allowed[:5]])
    stopped = counted(target, "openai", prompt, allowed[:5], stop_token_ids=allowed[1:3])
    assert fits(stopped, {**{(token,): float(p[at]) for at, token in enumerate(allowed[:5]) if at not in (1, 2)}, (): float(p[1] + p[2])})
    both = counted(target, "openai", prompt, allowed[:5], stop_token_ids=allowed[1:3], min_tokens=1)
    assert fits(both, outcomes([allowed[0], *allowed[3:5]], softmax(logits[[allowed[0], *allowed[3:5]]])))


Penalty = Callable[[F64, list[int], list[int]], F64]
"""Logits [V], the prompt, the output -> logits [V]."""


def repeated(logits: F64, prompt: list[int], output: list[int]) -> F64:
    seen = list({*prompt, *output})
    made = logits.copy()
    made[seen] = np.where(made[seen] > 0, made[seen] / 1.5, made[seen] * 1.5)
    return made


def frequent(logits: F64, _: list[int], output: list[int]) -> F64:
    made = logits.copy()
    for token in output:
        made[token] -= 1.1
    return made


def present(logits: F64, _: list[int], output: list[int]) -> F64:
    made = logits.copy()
    made[list(set(output))] += 1.4
    return made


PENALTIES: list[tuple[str, dict[str, Any], Penalty]] = [
    ("openai", {"repetition_penalty": 1.5}, repeated),
    ("novita", {"frequency_penalty": 1.1}, frequent),
    ("cerebras", {"presence_penalty": -1.4}, present),
]


@pytest.mark.parametrize(("dialect", "fields", "penalty"), PENALTIES, ids=lambda value: str(value) if not callable(value) else "")
def test_penalties(target: Target, dialect: str, fields: dict[str, Any], penalty: Penalty) -> None:
    """Over two tokens of output, so that what was drawn before counts: of two that are in the prompt and one that is not."""
    tokenizer = target.model.tokenizer
    prompt = tokenizer.encode("Letters: c a d a c d c a a d c d c a d d c a")
    allowed = [token for letter in (" a", " c", " b") for token in tokenizer.encode_inside(letter)]
    assert len(allowed) == 3
    first = after(target, prompt)
    even = {token: float(first[allowed[0]] - first[token]) for token in allowed}  # so that each comes up often
    bias = np.array([even[token] for token in allowed])

    def expected(penalty: Penalty) -> Outcomes:
        made: Outcomes = {(): 1.0}
        for _ in range(2):
            longer: Outcomes = {}
            for output, p in made.items():
                # Biases come before penalties.
                lifted = rows[output].copy()
                lifted[allowed] += bias
                each = softmax(penalty(lifted, prompt, list(output))[allowed])
                longer |= {(*output, token): p * float(q) for token, q in zip(allowed, each, strict=True)}
            made = longer
        return made

    rows = {output: after(target, [*prompt, *output]) for output in ((), *((token,) for token in allowed))}
    found = counted(
        target, dialect, prompt, allowed, max_tokens=2, logit_bias={str(token): value for token, value in even.items()}, **fields
    )
    assert fits(found, expected(penalty))
    assert not fits(found, expected(lambda logits, *_: logits))


@pytest.mark.parametrize(
    ("dialect", "more", "run"),
    [
        ("openai", {}, 3),
        ("cerebras", {"dry_base": 1.3, "dry_allowed_length": 1}, 3),
        ("fireworks", {"dry_penalty_last_n": 7}, 2),
        ("novita", {"dry_sequence_breakers": [" sea"]}, 1),
        ("openai", {"dry_allowed_length": 4}, 0),
    ],
    ids=str,
)
def test_dry(target: Target, dialect: str, more: dict[str, Any], run: int) -> None:
    """The prompt ends as it began, so the token that came next there goes on a run."""
    words = [" old", " sea", " man"]
    tokenizer = target.model.tokenizer
    start = [token for word in words for token in tokenizer.encode_inside(word)]
    assert len(start) == len(words)
    (goes_on,) = tokenizer.encode_inside(" fish")
    prompt = [*tokenizer.encode_inside("Look:"), *start, goes_on, *tokenizer.encode_inside(" net"), *start]
    logits = after(target, prompt)
    allowed = [goes_on, *[token for token in ranked(logits) if token != goes_on]]
    allowed = [token for token in allowed if tokenizer.pieces[token].isascii()]
    lift = float(logits[allowed[1]] - logits[goes_on])
    fields = {"dry_multiplier": 1.4, "logit_bias": {str(goes_on): lift}, **more}
    lifted = logits[allowed] + np.array([lift] + [0.0] * (len(allowed) - 1))
    length, base = more.get("dry_allowed_length", 2), more.get("dry_base", 1.75)
    penalty = 1.4 * base ** (run - length) if run >= length else 0.0
    found = counted(target, dialect, prompt, allowed, **fields)
    assert fits(found, outcomes(allowed, softmax(lifted - np.array([penalty] + [0.0] * (len(allowed) - 1)))))
    assert fits(found, outcomes(allowed, softmax(lifted))) == (penalty == 0)
