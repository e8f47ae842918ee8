"""What users of a server meet: loads, the figures taken from their traces, and what those must show (docs/benchmarks.md)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import ClassVar

from bench.common.figures import HTTP_SHARE, Ratio, pick
from bench.common.load import streaming
from bench.common.plan import Plan, column
from bench.common.proc import PeerError, say
from bench.common.prompt import VOCAB, prompt
from bench.serving.sessions import Session
from quintet.load.client import Trace
from quintet.load.figures import gaps, nearest_rank, summary, wall
from quintet.load.play import Body, Job, Load, arrivals

OURS, WHEEL, NATIVE, OPENVINO, CORE = "ours", "llama-server-wheel", "llama-server", "openvino", "core"
VLLM, VLLM_BF16 = "vllm", "vllm-bf16"
PERCENTILES = ("p50", "p90", "p99", "max")
NO_END: Body = {"ignore_eos": True}
"""Body field by which every one of these engines decodes on past an end of sequence."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large every scenario is, in tokens, requests, or seconds where it says so.

    Args:
        rounds: times that the clients' scenario is measured; the others take long enough by themselves.
        clients, context, tokens: numbers of streaming clients; prompt and completion of each.
        prefix, questions, question, answer: a shared prompt, and what comes after it.
        samples, sampled: choices of one prompt, and that prompt.
        items, options, shots, stem, option: scoring; ``few`` of the items where no cache shortens it.
        streams, stream: that decode when a prompt of ``long`` arrives, and how far each goes.
        rates, span_s, burst: arrivals per second, for how many seconds, completion of each.
        copied, copy_tokens: words of the text to be copied (4 are about 5 tokens), most tokens of the answer.
        vocab: prompts' token ids are below it.
    """

    rounds: int = 2
    clients: tuple[int, ...] = (1, 8, 32)
    context: int = 64
    tokens: int = 128
    prefix: int = 1500
    questions: int = 64
    question: int = 24
    answer: int = 8
    samples: int = 32
    sampled: int = 256
    items: int = 100
    few: int = 20
    options: int = 4
    shots: int = 240
    stem: int = 40
    option: int = 6
    streams: int = 16
    stream: int = 160
    long: int = 1500
    rates: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    span_s: float = 8.0
    burst: int = 64
    copied: int = 240
    copy_tokens: int = 360
    vocab: int = VOCAB


QUICK = Sizes(
    rounds=1,
    clients=(1, 4),
    context=32,
    tokens=16,
    prefix=300,
    questions=6,
    answer=4,
    samples=4,
    sampled=64,
    items=6,
    few=3,
    shots=60,
    streams=4,
    stream=96,
    long=300,
    rates=(2.0, 8.0),
    span_s=1.0,
    burst=8,
    copied=60,
    copy_tokens=64,
)


@dataclass
class Shown:
    """What one engine showed in a scenario.

    Args:
        engine: its key.
        variant: how it was asked or started, where there are several ways.
        figures: by name; of several rounds the median counts.
        detail: everything that was measured, for the JSON.
        note: what the figures do not say.
    """

    engine: str
    variant: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    detail: dict[str, object] = field(default_factory=dict)
    note: str = ""


Table = Mapping[tuple[str, str], Mapping[str, float]]
"""Figures of each engine and variant."""


class Prompts:
    """Prompts that no other request of a run has had, so that no cache helps where none should."""

    def __init__(self, vocab: int) -> None:
        self._vocab, self._serial = vocab, 0

    def new(self, length: int) -> list[int]:
        self._serial += 1
        return [token % self._vocab for token in prompt(self._serial, length)]

    def stream(self, length: int, tokens: int) -> Body:
        """A greedy stream from a new prompt."""
        return streaming(self.new(length), tokens, NO_END)


class Scenario(ABC):
    """One table of the report.

    Args:
        key: what ``--only`` calls it.
        columns: figures shown, in order.
        engines: who takes part.
    """

    key: ClassVar[str]
    title: ClassVar[str]
    columns: ClassVar[Sequence[str]]
    engines: ClassVar[Sequence[str]]

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    @property
    def rounds(self) -> int:
        return 1

    @property
    def blocks(self) -> Sequence[Sequence[str]]:
        """The columns of each table."""
        return [self.columns]

    @abstractmethod
    def plan(self, base: Plan) -> Plan:
        """What the engines are started for."""

    def starts(self, engine: str) -> Sequence[tuple[str, Sequence[str]]]:
        """Variants of an engine that are started separately, with their command-line options."""
        del engine
        return [("", ())]

    @abstractmethod
    def measure(self, session: Session, engine: str, prompts: Prompts) -> Iterator[Shown]:
        """Play the loads."""

    @abstractmethod
    def ratios(self, table: Table) -> Iterator[Ratio]:
        """What must be shown, of what was measured."""


def figure(table: Table, engine: str, name: str, variant: str = "") -> float | None:
    """A figure; ``None`` if it was not measured."""
    return table.get((engine, variant), {}).get(name)


def ratio(table: Table, name: str, peer: str, needed: float | None) -> Iterator[Ratio]:
    """Ours against a peer in one column, where both were measured."""
    ours, other = figure(table, OURS, name), figure(table, peer, name)
    if ours and other:
        yield Ratio("ours / " + peer, name, ours / other, needed, peer)


def none_failed(table: Table) -> Iterator[Ratio]:
    """Ours lost no request."""
    failed = [figures["failed"] for (engine, _), figures in table.items() if engine == OURS and "failed" in figures]
    if failed:
        yield Ratio("ours, failed requests", "", sum(failed), 0, "", at_most=True)


def checked(session: Session, load: Load) -> list[Trace]:
    """Traces; what failed is said."""
    traces = session.play(load)
    if errors := sorted({trace.error or "no text" for trace in traces if not trace.good}):
        say(f"    {len([trace for trace in traces if not trace.good])} of {len(traces)} requests failed: {errors[0][:200]}")
    if errors and not any(trace.good for trace in traces):
        raise PeerError(f"every request failed: {errors[0][:200]}")
    return traces


def latencies(told: dict[str, object], of: str, name: str) -> dict[str, float]:
    """The percentiles of a summary as figures."""
    return {f"{name} {p}": pick(told, [of, p]) for p in PERCENTILES}


class Clients(Scenario):
    """Streaming clients, each with a prompt of its own."""

    key = "clients"
    title = "Streaming clients, each with a prompt of its own (closed loop): tokens per second, with the prompts and while all decode"
    engines = (OURS, CORE, WHEEL, NATIVE, OPENVINO)
    columns = ()

    @property
    def rounds(self) -> int:
        return self.sizes.rounds

    @property
    def most(self) -> int:
        return max(self.sizes.clients)

    @property
    def blocks(self) -> Sequence[Sequence[str]]:
        rates = [f"{clients} {how}" for how in ("clients", "decoding") for clients in self.sizes.clients]
        waits = [[f"{clients}: {of} {p}" for of in ("first", "gap") for p in PERCENTILES] for clients in self.sizes.clients]
        return [[*rates, "failed"], *waits]

    def plan(self, base: Plan) -> Plan:
        s = self.sizes
        return replace(base, clients=s.clients, batches=(self.most,), context=s.context, steps=s.tokens, http_tokens=s.tokens, prefill=16)

    def measure(self, session: Session, engine: str, prompts: Prompts) -> Iterator[Shown]:
        figures: dict[str, float] = {"failed": 0.0}
        detail: dict[str, object] = {}
        for clients in self.sizes.clients:
            jobs = [Job(prompts.stream(self.sizes.context, self.sizes.tokens)) for _ in range(clients)]
            told = summary(checked(session, Load(jobs, clients)))
            detail[column(clients)] = told
            figures["failed"] += pick(told, ["failed"])
            figures[f"{clients} clients"] = pick(told, ["tokens_per_s"])
            figures[f"{clients} decoding"] = pick(told, ["steady_tokens_per_s"])
            figures |= latencies(told, "ttft_ms", f"{clients}: first") | latencies(told, "gap_ms", f"{clients}: gap")
        yield Shown(engine, "", figures, detail)

    def ratios(self, table: Table) -> Iterator[Ratio]:
        name = f"{self.most} clients"
        yield from ratio(table, name, OPENVINO, 1.5)
        yield from ratio(table, name, WHEEL, 5.0)
        yield from ratio(table, name, NATIVE, None)
        yield from ratio(table, f"{self.most} decoding", CORE, HTTP_SHARE)
        yield from none_failed(table)


class Prefix(Scenario):
    """Questions about one long text, one after the other."""

    key = "prefix"
    title = "One long shared prefix, one question after the other: milliseconds to the first token"
    engines = (OURS, WHEEL, OPENVINO)
    columns = ("first", "later p50", "later p90", "later p99", "later max", "questions/s", "failed")

    def plan(self, base: Plan) -> Plan:
        s = self.sizes
        return replace(base, clients=(1,), prefill=s.prefix + s.question + s.answer, cache=True)

    def measure(self, session: Session, engine: str, prompts: Prompts) -> Iterator[Shown]:
        s = self.sizes
        prefix = prompts.new(s.prefix)
        bodies = [streaming(prefix + prompts.new(s.question), s.answer, NO_END) for _ in range(s.questions)]
        traces = checked(session, Load([Job(body) for body in bodies], 1))
        first, later = summary(traces[:1]), summary(traces[1:])
        figures = {"first": pick(first, ["ttft_ms", "p50"])} | latencies(later, "ttft_ms", "later")
        figures |= {"questions/s": len(traces) / wall(traces), "failed": pick(later, ["failed"]) + pick(first, ["failed"])}
        yield Shown(engine, "", figures, {"first": first, "later": later})

    def ratios(self, table: Table) -> Iterator[Ratio]:
        for name in ("later p50", "later max"):
            first, later = figure(table, OURS, "first"), figure(table, OURS, name)
            if first and later:
                yield Ratio("ours, later / first", name, later / first, 0.10, "", at_most=True)
        yield from none_failed(table)


class Samples(Scenario):
    """Many samples of one prompt."""

    key = "samples"
    title = "Many samples of one prompt, one request: tokens per second, and prompt tokens that were computed, by the server's own count"
    engines = (OURS, WHEEL, OPENVINO)
    columns = ("tokens/s", "first", "prompt tokens computed", "failed")

    def plan(self, base: Plan) -> Plan:
        s = self.sizes
        return replace(base, clients=(s.samples,), prefill=s.sampled + s.tokens, cache=True)

    def measure(self, session: Session, engine: str, prompts: Prompts) -> Iterator[Shown]:
        s = self.sizes
        body = prompts.stream(s.sampled, s.tokens) | {"n": s.samples, "temperature": 1.0, "seed": 1}
        before = session.metric(PREFILLED)
        (trace,) = checked(session, Load([Job(body)], 1))
        after = session.metric(PREFILLED)
        figures = {"tokens/s": trace.tokens / (trace.end - trace.due), "first": 1e3 * (trace.times[0] - trace.due), "failed": 0.0}
        if before is not None and after is not None:
            figures["prompt tokens computed"] = after - before
        short = s.samples * s.tokens - trace.tokens
        yield Shown(engine, "", figures, summary([trace]), f"{short} tokens fewer than asked for" if short else "")

    def ratios(self, table: Table) -> Iterator[Ratio]:
        computed = figure(table, OURS, "prompt tokens computed")
        if computed is not None:
            yield Ratio("ours, computed / prompt tokens", "", computed / self.sizes.sampled, 1.0, "", at_most=True)
        yield from ratio(table, "tokens/s", WHEEL, 3.0)
        yield from ratio(table, "tokens/s", OPENVINO, None)


PREFILLED = "quintet:prefill_tokens_total"


class Arrival(Scenario):
    """A long prompt arrives while others read their streams."""

    key = "arrival"
    title = "A long prompt arrives while streams decode: milliseconds between a stream's tokens until the newcomer has its first"
    engines = (OURS, WHEEL)
    columns = ("gap before p50", "gap p50", "gap p99", "gap max", "newcomer's first", "failed")

    @property
    def rounds(self) -> int:
        return self.sizes.rounds

    def plan(self, base: Plan) -> Plan:
        s = self.sizes
        return replace(base, clients=(s.streams + 1,), prefill=max(s.long, s.context + s.stream) + 8)

    def measure(self, session: Session, engine: str, prompts: Prompts) -> Iterator[Shown]:
        s = self.sizes
        streams = [Job(prompts.stream(s.context, s.stream)) for _ in range(s.streams)]
        load = Load([*streams, Job(prompts.stream(s.long, 4), 0.2)], s.streams, after_clients=True)
        *decoding, newcomer = checked(session, load)
        if not newcomer.good:
            raise PeerError(f"the long prompt failed: {newcomer.error}")
        figures = disturbance(decoding, newcomer)
        yield Shown(engine, "", figures | {"failed": pick(summary(decoding), ["failed"])}, {"streams": summary(decoding)})

    def ratios(self, table: Table) -> Iterator[Ratio]:
        longest = figure(table, OURS, "gap max")
        if longest:
            yield Ratio("ours, longest gap, ms", "gap max", longest, 150, "", at_most=True)
        yield from none_failed(table)


def disturbance(decoding: Sequence[Trace], newcomer: Trace) -> dict[str, float]:
    """Gaps of the streams before the newcomer came, and from then until it had its first token; milliseconds."""
    every = [gap for trace in decoding for gap in gaps(trace)]
    before = [length for late, length in every if late <= newcomer.due]
    during = sorted(length for late, length in every if late > newcomer.due and late - length < newcomer.times[0])
    if not during:
        raise PeerError("no stream was decoding when the long prompt came")
    at = {"gap p50": 50, "gap p99": 99, "gap max": 100}
    found = {name: 1e3 * nearest_rank(during, percent) for name, percent in at.items()}
    return {"gap before p50": 1e3 * median(before or [0.0]), **found, "newcomer's first": 1e3 * (newcomer.times[0] - newcomer.due)}


class Rates(Scenario):
    """Arrivals at a rate, whether or not earlier requests were answered."""

    key = "rates"
    title = "Open loop, Poisson arrivals: milliseconds to the first token (from when it was due) and between tokens"
    engines = (OURS, WHEEL)
    columns = ("tokens/s", *(f"{of} {p}" for of in ("first", "gap") for p in PERCENTILES), "failed")
    PATIENCE_MS = 4000.0
    """Median wait beyond which higher rates are not tried: the queue only grows."""

    def plan(self, base: Plan) -> Plan:
        s = self.sizes
        return replace(base, clients=(32,), prefill=s.context + s.burst)

    def measure(self, session: Session, engine: str, prompts: Prompts) -> Iterator[Shown]:
        s = self.sizes
        for rate in s.rates:
            times = arrivals(rate, max(round(rate * s.span_s), 2), seed=1)
            traces = checked(session, Load([Job(prompts.stream(s.context, s.burst), at) for at in times]))
            told = summary(traces)
            figures = {"tokens/s": pick(told, ["tokens_per_s"]), "failed": pick(told, ["failed"])}
            figures |= latencies(told, "ttft_ms", "first") | latencies(told, "gap_ms", "gap")
            yield Shown(engine, f"{rate:g}/s", figures, told)
            if figures["first p50"] > self.PATIENCE_MS:
                break

    def ratios(self, table: Table) -> Iterator[Ratio]:
        yield from none_failed(table)
