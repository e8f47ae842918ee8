"""The serving scenarios' figures and verdicts, from traces made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from bench.common.proc import PeerError
from bench.serving.report import Part
from bench.serving.scenarios import (
    CORE,
    OPENVINO,
    OURS,
    QUICK,
    VLLM,
    VLLM_BF16,
    WHEEL,
    Arrival,
    Clients,
    Prefix,
    Prompts,
    Samples,
    Scenario,
    Shown,
    disturbance,
)
from bench.serving.scoring import CACHED, UNCACHED, Items, Scoring, agreement, apart
from bench.serving.sessions import Session
from quintet.load.client import Trace
from quintet.load.play import Load


class Scripted(Session):
    """Answers every load by a function of its jobs' bodies."""

    def __init__(self, *metrics: float) -> None:
        self._metrics = iter(metrics)

    def play(self, load: Load) -> list[Trace]:
        return [Trace(0.0, times=[1.0, 2.0], tokens=8, status=200, end=2.0) for _ in load.jobs]

    def metric(self, name: str) -> float | None:
        return next(self._metrics, None)


def shown(scenario: Scenario, session: Session) -> list[Shown]:
    return list(scenario.measure(session, OURS, Prompts(1000)))


def verdicts(part: Part) -> dict[tuple[str, str], str]:
    return {(ratio.what, ratio.column): ratio.verdict for ratio in part.ratios()}


def test_prompts_are_new_each_time_and_below_the_vocabulary() -> None:
    prompts = Prompts(257)
    found = [tuple(prompts.new(20)) for _ in range(50)]
    assert len({ids[0] for ids in found}) == 50, "no two share a beginning"
    assert all(0 <= token < 257 for ids in found for token in ids)


def test_several_rounds_count_by_their_median_and_ratios_are_drawn_from_those() -> None:
    part = Part(Clients(QUICK))
    for ours, other in [(60.0, 10.0), (40.0, 1.0), (50.0, 9.0)]:
        part.shown += [Shown(OURS, "", {"4 clients": ours, "4 decoding": 80.0, "failed": 0.0}), Shown(WHEEL, "", {"4 clients": other})]
    part.shown += [Shown(OPENVINO, "", {"4 clients": 40.0}), Shown(CORE, "", {"4 decoding": 100.0})]
    assert part.figures()[OURS, ""]["4 clients"] == 50
    found = {ratio.what: (round(ratio.value, 6), ratio.verdict) for ratio in part.ratios()}
    assert found == {
        "ours / openvino": (1.25, "SHORT"),
        "ours / llama-server-wheel": (5.555556, "pass"),
        "ours / core": (0.8, "SHORT"),
        "ours, failed requests": (0.0, "pass"),
    }


def test_a_lost_request_of_ours_is_a_shortcoming_and_a_peers_is_not() -> None:
    part = Part(Prefix(QUICK), [Shown(OURS, "", {"first": 100.0, "later p50": 9.0, "later max": 11.0, "failed": 1.0})])
    assert list(verdicts(part).values()) == ["pass", "SHORT", "SHORT"]
    part.shown = [Shown(WHEEL, "", {"failed": 3.0})]
    assert verdicts(part) == {}


def test_samples_are_proved_by_the_servers_own_count() -> None:
    scenario = Samples(QUICK)
    for counts, verdict in [((100.0, 100.0 + QUICK.sampled), "pass"), ((100.0, 100.0 + 2 * QUICK.sampled), "SHORT")]:
        part = Part(scenario, shown(scenario, Scripted(*counts)))
        assert verdicts(part)["ours, computed / prompt tokens", ""] == verdict
    assert "prompt tokens computed" not in shown(scenario, Scripted())[0].figures, "a server without the metric"


def test_gaps_count_from_when_the_long_prompt_came_until_it_has_its_first_token() -> None:
    decoding = [Trace(0.0, times=[1.0, 1.1, 1.2, 1.5, 1.6, 4.0]), Trace(0.0, times=[1.15, 1.25, 1.4])]
    found = disturbance(decoding, Trace(1.22, times=[1.55]))
    assert found["gap before p50"] == pytest.approx(100)
    assert found["gap max"] == pytest.approx(300)
    assert found["newcomer's first"] == pytest.approx(330)
    with pytest.raises(PeerError, match="no stream was decoding"):
        disturbance([Trace(0.0, times=[1.0])], Trace(2.0, times=[3.0]))


def test_when_every_request_fails_the_reason_is_the_rows() -> None:
    class Broken(Scripted):
        def play(self, load: Load) -> list[Trace]:
            return [Trace(0.0, status=400, error="status 400: no") for _ in load.jobs]

    with pytest.raises(PeerError, match="every request failed: status 400: no"):
        shown(Arrival(QUICK), Broken())


# ---- scoring


def answered(items: Items, shift: float = 0.0) -> Iterator[Trace]:
    for context, options in zip(items.contexts, items.options, strict=True):
        for at, option in enumerate(options):
            values = [None, *[-9.0] * (len(context) - 1), *[-1.0 - at - shift] * len(option), -5.0]
            yield Trace(0.0, status=200, body=json.dumps({"choices": [{"logprobs": {"token_logprobs": values}}]}).encode())


def test_an_options_score_is_of_its_own_tokens_only() -> None:
    items = Items.of(QUICK)
    scores = items.scores(list(answered(items)))
    assert scores == [[[-1.0 - at] * QUICK.option for at in range(QUICK.options)]] * QUICK.items
    moved = items.scores(list(answered(items, 0.5)))
    assert moved is not None
    assert (apart(scores, moved), agreement(scores, moved)) == (0.5, 1.0)
    assert agreement(scores, [[[0.0], [1.0]]]) == 0.0
    first = items.bodies(1)
    assert [body["prompt"] for body in first] == [[*items.contexts[0], *option] for option in items.options[0]]


@pytest.mark.parametrize("told", [None, {"content": []}, {"token_logprobs": [None, -1.0]}], ids=["none", "content", "too few"])
def test_an_answer_without_the_prompts_log_probabilities_gives_no_scores(told: object) -> None:
    body = json.dumps({"choices": [{"logprobs": told}]}).encode()
    assert Items.of(QUICK).scores([Trace(0.0, status=200, body=body)]) is None
    assert Items.of(QUICK).scores([Trace(0.0, status=200, body=b"")]) is None


def test_only_a_peer_whose_answers_are_near_ours_is_one_to_be_beaten() -> None:
    def row(rate: float, difference: float) -> dict[str, float]:
        return {"requests/s": rate, "difference": difference}

    table = {(OURS, CACHED): row(90, 0), (OURS, UNCACHED): row(20, 0), (OPENVINO, CACHED): row(12, 0.7), (VLLM, CACHED): row(10, 0.01)}
    found = {ratio.what: ratio for ratio in Scoring(QUICK).ratios(table)}
    assert found["ours / ours, prefix cache off"].verdict == "pass"
    assert (found["ours / openvino"].verdict, found["ours / openvino"].to) == ("", "not near enough to ours")
    assert (found["ours / vllm"].verdict, found["ours / vllm"].to) == ("pass", "best peer with right answers")
    table[VLLM_BF16, CACHED] = row(11, 0.3)
    found = {ratio.what: ratio for ratio in Scoring(QUICK).ratios(table)}
    assert (found["ours / vllm-bf16"].verdict, found["ours / vllm-bf16"].to) == ("pass", "not near enough to ours"), (
        "to be beaten all the same"
    )
    assert found["ours, prefix cache off / vllm-bf16"].verdict == "SHORT"
    table[OURS, UNCACHED]["difference"] = 1e-9
    found = {ratio.what: ratio for ratio in Scoring(QUICK).ratios(table)}
    assert found["ours, cached against uncached, nats"].verdict == "SHORT", "to the bit"
