"""What comes out of the real vLLM is vLLM's own model, drawn by our rules: texts, log-probabilities, distributions, seeds."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.backends.contract.test_backend import run, spec
from tests.backends.native.core.test_sample import chi_square_excess
from tests.support.preparing import prepare, preparer_of
from tests.vllm.engine import Shared
from tests.vllm.models import folder
from tests.vllm.own import by_itself

from quintet.inputs.sequence import SequenceSpec
from quintet.request import Guide, GuideKind, Sampling

PROMPTS = int(os.environ.get("QUINTET_TEST_VLLM_PROMPTS", "100"))
TOKENS = 20
DRAWS = int(os.environ.get("QUINTET_TEST_VLLM_DRAWS", "600"))
CELLS, HEAT = 8, 2.0
"""Likeliest tokens that are drawn from, and the temperature: each is drawn often enough to be counted."""
WORDS = ("river", "night", "engine", "garden", "winter", "music", "paper", "stone", "city", "letter")
SCHEMA = '{"type":"object","properties":{"a":{"enum":[1,22]}},"required":["a"],"additionalProperties":false}'
STORY = "It was late when they came home, and nobody in the house had heard the door. On the table lay"
TEXTS = [f"{number}. {STORY} the {WORDS[number % 10]} and the {WORDS[number // 10 % 10]}, found by" for number in range(PROMPTS)]


def test_greedy_texts_and_log_probabilities_are_vllms_own(smollm2: Shared) -> None:
    async def ours(backend: Any) -> tuple[list[list[int]], list[list[int]], list[list[float]]]:
        ids = [[*await preparer_of(backend).tokenize(text, False)] for text in TEXTS]
        texts, scores = [], []
        for first in range(0, PROMPTS, 4):
            some = ids[first : first + 4]
            greedy = Sampling(0.0, 1.0, 0, ignore_eos=True)
            asked = [SequenceSpec(tuple(one), TOKENS, greedy, 0, echo=True) for one in some]
            for events in await run(backend, *asked):
                texts.append([event.token for event in events if not event.prompt])
                scores.append([event.logprob for event in events if event.prompt and event.logprob is not None])
        return ids, texts, scores

    ids, texts, scores = smollm2.check(ours)
    own = by_itself(folder("smollm2"), ids, TOKENS)
    assert texts == own["texts"]
    assert sum(map(len, scores)) >= TOKENS * PROMPTS
    for mine, theirs in zip(scores, own["scores"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-3)


def test_a_seed_gives_the_same_text_alone_and_among_sixteen_others(smollm2: Shared) -> None:
    one = SequenceSpec(TEXTS[0], 24, Sampling(0.9, 0.95, 77, seeded=True), None, echo=False)

    async def scenario(backend: Any) -> list[list[int]]:
        others = [asyncio.create_task(run(backend, spec(text, 30, temperature=1.0, seed=seed))) for seed, text in enumerate(TEXTS[1:17])]
        among = await run(backend, one)
        await asyncio.gather(*others)
        return [[event.token for event in events] for (events,) in (among, await run(backend, one), await run(backend, one))]

    among, alone, again = smollm2.check(scenario)
    assert among == alone == again


def test_what_is_drawn_has_the_distribution_of_the_formula(smollm2: Shared) -> None:
    async def scenario(backend: Any) -> tuple[dict[int, float], Counter[int]]:
        (events,) = await run(backend, SequenceSpec(TEXTS[0], 1, Sampling(0.0, 1.0, 0), CELLS, echo=False))
        own = dict(events[0].top)  # the model's own log-probabilities
        allowed = tuple(sorted(own))
        drawn: Counter[int] = Counter()
        for first in range(0, DRAWS, 12):
            sampling = [Sampling(HEAT, 1.0, seed, allowed_token_ids=allowed) for seed in range(first, first + 12)]
            for events in await run(backend, *[SequenceSpec(TEXTS[0], 1, one, None, echo=False) for one in sampling]):
                drawn[events[0].token] += 1
        return own, drawn

    own, drawn = smollm2.check(scenario)
    logits = np.array([own[token] for token in sorted(own)]) / HEAT
    expected = np.exp(logits - logits.max())
    expected /= expected.sum()
    counts = np.array([drawn[token] for token in sorted(own)])
    assert counts.sum() == len(range(0, DRAWS, 12)) * 12
    assert chi_square_excess(counts, expected) <= 0
    assert chi_square_excess(counts, np.full(CELLS, 1 / CELLS)) > 0, "without temperature and model it would not fit"


def test_generated_and_echoed_log_probabilities_agree(smollm2: Shared) -> None:
    async def scenario(backend: Any) -> None:
        prompt = (await prepare(backend, [spec()])).sequences[0].tokens
        (generated,) = await run(backend, spec(prompt, 24, logprobs=2))
        whole = (*prompt, *(event.token for event in generated))
        for max_tokens in (0, 1):
            (echoed,) = await run(backend, spec(whole, max_tokens, logprobs=2, echo=True))
            assert [event.token for event in echoed if event.prompt] == list(whole)
            assert echoed[0].logprob is None
            again = [event.logprob for event in echoed[len(prompt) : len(whole)]]
            assert again == pytest.approx([event.logprob for event in generated], abs=1e-3)
            assert len(echoed) == len(whole) + 1

    smollm2.check(scenario)


def test_guides_budgets_and_bans_hold_in_vllms_batch(smollm2: Shared) -> None:
    async def scenario(backend: Any) -> list[bytes]:
        base = spec("Answer:", 30, temperature=1.0, seed=3)
        guided = replace(base, guide=Guide(GuideKind.JSON_SCHEMA, SCHEMA, "response_format"))
        chosen = replace(base, guide=Guide(GuideKind.CHOICE, '["yes","no"]', "guided_choice"))
        banned = replace(base, sampling=replace(base.sampling, bad_words=("the", "a"), min_tokens=20))
        events = await run(backend, guided, chosen, banned)
        return [b"".join(event.piece for event in each) for each in events]

    guided, chosen, banned = smollm2.check(scenario)
    assert json.loads(guided)["a"] in (1, 22)
    assert chosen in (b"yes", b"no")
    assert b" the " not in banned


def test_every_family_answers_and_its_log_probabilities_are_those_of_its_echo(any_model: Shared) -> None:
    async def scenario(backend: Any) -> None:
        (generated,) = await run(backend, spec("Once upon a time", 6, logprobs=1, temperature=1.0, seed=5))
        assert len(generated) >= 1
        prompt = tuple(await preparer_of(backend).tokenize("Once upon a time", False))
        (echoed,) = await run(backend, spec((*prompt, *(event.token for event in generated)), 0, logprobs=1, echo=True))
        again = [event.logprob for event in echoed if event.prompt][len(prompt) :]
        assert again == pytest.approx([event.logprob for event in generated], abs=1e-3)

    any_model.check(scenario)
