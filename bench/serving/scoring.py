"""Scoring as lm-eval does it: each option of a question after its context, as token ids, with ``echo`` and ``logprobs``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import mean

from bench.common.figures import Ratio
from bench.common.plan import Plan
from bench.common.prompt import prompt
from bench.serving.scenarios import OPENVINO, OURS, VLLM, VLLM_BF16, WHEEL, Prompts, Scenario, Shown, Sizes, Table, checked, figure
from bench.serving.sessions import Session
from quintet.load.client import Trace
from quintet.load.figures import summary, wall
from quintet.load.play import Body, Job, Load

CONCURRENT = 8
"""Requests under way at once (lm-eval's ``num_concurrent``)."""
CACHED, UNCACHED = "", "prefix cache off"
APART = 0.15
"""Mean difference per token from ours, in nats, up to which a peer's answers count as right: other kernels round otherwise."""

Scores = list[list[list[float]]]
"""[item][option][token]: log-probabilities."""


@dataclass(frozen=True, slots=True)
class Items:
    """The questions: the same for every engine. A common beginning (the examples), a context for each, then its options."""

    contexts: Sequence[Sequence[int]]
    options: Sequence[Sequence[Sequence[int]]]

    @classmethod
    def of(cls, sizes: Sizes) -> Items:
        serial = count()

        def text(length: int) -> list[int]:
            return [token % sizes.vocab for token in prompt(next(serial), length + 1)[1:]]

        shots = text(sizes.shots)
        contexts = [shots + text(sizes.stem) for _ in range(sizes.items)]
        return cls(contexts, [[text(sizes.option) for _ in range(sizes.options)] for _ in contexts])

    def bodies(self, items: int) -> list[Body]:
        """The requests for the first ``items`` questions, as lm-eval sends them."""
        asked = zip(self.contexts[:items], self.options[:items], strict=True)
        prompts = [[*context, *option] for context, options in asked for option in options]
        return [{"prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True, "seed": 1234} for ids in prompts]

    def scores(self, traces: Sequence[Trace]) -> Scores | None:
        """What the answers say of the options' tokens; ``None`` if one does not say it of every token of its prompt."""
        answers = iter(traces)
        found: Scores = []
        for context, options in zip(self.contexts, self.options, strict=True):
            rows = [of_prompt(trace.body, len(context) + len(option)) for option, trace in zip(options, answers, strict=False)]
            if not rows:
                break
            if not all(rows):
                return None
            found.append([row[len(context) :] for row in rows])
        return found


def of_prompt(body: bytes, length: int) -> list[float]:
    """Log-probabilities of a prompt's tokens; empty if they are not all there."""
    try:
        values = json.loads(body)["choices"][0]["logprobs"]["token_logprobs"][:length]
        return [0.0, *map(float, values[1:])] if len(values) == length else []
    except (ValueError, LookupError, TypeError):
        return []


def apart(one: Scores, other: Scores) -> float:
    """Mean absolute difference per token, over the questions that both have."""
    pairs = zip(one, other, strict=False)
    return mean(abs(a - b) for left, right in pairs for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True))


def agreement(one: Scores, other: Scores) -> float:
    """Share of the questions, of those that both have, in which both prefer the same option."""
    return mean(float(preferred(left) == preferred(right)) for left, right in zip(one, other, strict=False))


def preferred(options: Sequence[Sequence[float]]) -> int:
    return max(range(len(options)), key=lambda at: sum(options[at]))


class Scoring(Scenario):
    """Multiple choice by log-probabilities. Where nothing is cached a request costs the same each time, so a part of them will do."""

    key = "scoring"
    title = f"Scoring (echo, logprobs, token ids; {CONCURRENT} at once): requests per second; nats per token and choices against ours"
    engines = (OURS, OPENVINO, VLLM, VLLM_BF16, WHEEL)
    columns = ("requests", "requests/s", "difference", "same choice", "failed")

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self._items = Items.of(sizes)
        self._ours: Scores = []

    def plan(self, base: Plan) -> Plan:
        s = self.sizes
        return replace(base, clients=(CONCURRENT,), prefill=s.shots + s.stem + s.option + 1)

    def measure(self, session: Session, engine: str, prompts: Prompts) -> Iterator[Shown]:
        del prompts
        if engine != OURS:
            yield self._measure(session, engine, CACHED, self._items.bodies(self.sizes.few))
            return
        yield self._measure(session, OURS, CACHED, self._items.bodies(self.sizes.items))
        apart = [body | {"prompt_cache_isolation_key": f"{at}"} for at, body in enumerate(self._items.bodies(self.sizes.few))]
        yield self._measure(session, OURS, UNCACHED, apart)

    def _measure(self, session: Session, engine: str, variant: str, bodies: Sequence[Body]) -> Shown:
        probe = checked(session, Load([Job({**bodies[0], "prompt": bodies[0]["prompt"][:9]})], 1))  # type: ignore[index]
        if not of_prompt(probe[0].body, 9):
            return Shown(engine, variant, note=f"gives no log-probabilities of the prompt: {probe[0].body[:160].decode(errors='replace')}")
        traces = checked(session, Load([Job(body) for body in bodies], CONCURRENT, keep=True))
        scores = self._items.scores(traces)
        if not scores:
            return Shown(engine, variant, note="an answer lacks log-probabilities of its prompt")
        self._ours = self._ours or scores
        figures = {"requests": float(len(traces)), "requests/s": len(traces) / wall(traces), "failed": 0.0}
        figures |= {"difference": apart(self._ours, scores), "same choice": agreement(self._ours, scores)}
        return Shown(engine, variant, figures, summary(traces))

    def ratios(self, table: Table) -> Iterator[Ratio]:
        ours, uncached = figure(table, OURS, "requests/s"), figure(table, OURS, "requests/s", UNCACHED)
        if ours and uncached:
            yield Ratio("ours / ours, prefix cache off", "requests/s", ours / uncached, 3.0, "the same requests")
            yield Ratio("ours, cached against uncached, nats", "difference", table[OURS, UNCACHED]["difference"], 0.0, "", at_most=True)
        peers = {peer: rate for peer in (OPENVINO, VLLM, VLLM_BF16) if (rate := figure(table, peer, "requests/s"))}
        right = {peer: rate for peer, rate in peers.items() if table[peer, CACHED]["difference"] <= APART}
        best = max(right, key=lambda peer: right[peer], default="")
        for peer, rate in peers.items():
            if ours:
                required = 8.0 if peer in (best, VLLM_BF16) else None
                yield Ratio("ours / " + peer, "requests/s", ours / rate, required, self._verdict(peer, right, best))
        if uncached and VLLM_BF16 in peers:
            yield Ratio(
                f"ours, prefix cache off / {VLLM_BF16}", "requests/s", uncached / peers[VLLM_BF16], 2.0, "prompts that no cache knows"
            )

    @staticmethod
    def _verdict(peer: str, right: dict[str, float], best: str) -> str:
        return "best peer with right answers" if peer == best else "right answers" if peer in right else "not near enough to ours"
