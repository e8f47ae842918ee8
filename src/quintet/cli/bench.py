"""``quintet bench``: load on any server that speaks one of the pages, and what it felt like from outside."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import uvloop

from quintet.cli.asking import Server, UnusableServerError, first_model, parse_url
from quintet.cli.bench_report import Measured, drawn, svg
from quintet.cli.console import OptionError
from quintet.cli.early import INTERRUPTED
from quintet.cli.fleet import parse_seconds
from quintet.cli.interrupt import on_interrupt, unless
from quintet.dialects.catalog import PROVIDERS
from quintet.dialects.fields import Status
from quintet.errors import shorten
from quintet.load.client import Target, Trace
from quintet.load.figures import summary
from quintet.load.play import Body, Job, Load, arrivals, over_http, sustained

_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand part place case "
    "week company system program question work government number night point home water room mother area money story fact month lot right "
    "study book eye job word business issue side kind head house service friend father power hour game line end member law car city name"
)
WORDS = _TEXT.split()
"""Ordinary words, a token each in most vocabularies."""

_SPAN = re.compile(r"([1-9]\d{0,6})(?:-([1-9]\d{0,6}))?")
DURATION_S = 30.0
CLIENTS = 4
MOST_REQUESTS = 500_000
"""Where their number is known before: all are made before the clock starts, and each takes about 3 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """On what, and how it is told.

    Args:
        model: empty = the first that the server lists.
        svg: a file for the report as a picture.
    """

    url: str
    page: str
    key: str
    model: str
    timeout: float
    as_json: bool
    svg: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What load.

    Args:
        clients: that wait for their answers; 0 = arrivals at ``rate`` per second.
        requests: in all; 0 = as many as there are in ``duration`` seconds.
        prompt_tokens, max_tokens: the least and the most of a request.
        same_prefix: words at the beginning of every prompt that are the same.
        extra: more members of each body.
        warm_up: requests before those that count.
    """

    clients: int
    rate: float
    requests: int
    duration: float
    prompt_tokens: tuple[int, int]
    max_tokens: tuple[int, int]
    same_prefix: int
    stream: bool
    extra: Body
    seed: int
    warm_up: int


def fresh_seed() -> int:
    """A load that nobody has put on before: a server's prefix cache would have the prompts of one."""
    return secrets.randbits(32)


def parse_span(text: str, option: str) -> tuple[int, int]:
    """The least and the most of ``64`` or ``16-512``.

    Raises:
        OptionError: neither form, or the least is above the most.
    """
    found = _SPAN.fullmatch(text.strip())
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if least > most:
        raise OptionError(f"{option} must be a number such as 64, or two such as 16-512, got {shorten(text)}.")
    return least, most


def require_within(same: int, words: tuple[int, int]) -> None:
    """
    Raises:
        OptionError: more words are to be the same than a prompt may have.
    """
    if same > words[0]:
        raise OptionError(f"--same-prefix must be at most the least of --prompt-tokens, {words[0]}, got {same}.")


def parse_extra(text: str) -> Body:
    """The members of a JSON object.

    Raises:
        OptionError: it is none.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise OptionError(f"--extra must be a JSON object, got {shorten(text)}.")
    return found


class Amount(NamedTuple):
    """How much load; see ``LoadOptions``."""

    clients: int
    rate: float
    requests: int
    duration: float


def parse_amount(clients: int | None, rate: float | None, requests: int | None, duration: str | None) -> Amount:
    """What the four options say together.

    Raises:
        OptionError: two that contradict, or more requests than are made beforehand.
    """
    if clients is not None and rate is not None:
        raise OptionError("--clients is for clients that wait for their answers, --rate for arrivals that do not: give one of them.")
    if requests is not None and duration is not None:
        raise OptionError("--requests and --duration both say when it ends: give one of them.")
    seconds = parse_seconds(duration, "--duration") if duration is not None else DURATION_S
    if not seconds:
        raise OptionError("--duration must be above 0.")
    count = requests or (rate or 0.0) * seconds
    if count > MOST_REQUESTS:
        raise OptionError(f"{'--requests' if requests else '--rate times --duration'} must be at most {MOST_REQUESTS:,}, got {count:g}.")
    return Amount(
        clients=0 if rate else clients or CLIENTS,
        rate=rate or 0.0,
        requests=requests or 0,
        duration=0.0 if requests else seconds,
    )


def bench(options: BenchOptions, load: LoadOptions) -> int:
    """Put the load on, and print what came of it; 1 if no request ended well, ``INTERRUPTED`` if it was ended before its time, else 0.

    Raises:
        OptionError: a malformed URL, or a picture that cannot be written.
        UnusableServerError: the server answers no request at all.
    """
    base = parse_url(options.url)
    if options.svg is not None:
        _require_writable(options.svg)
    model = options.model or first_model(Server(base, options.key, options.timeout))
    headers = (("user-agent", f"quintet-bench ({options.page})"),)
    target = _Noting(f"{base.geturl()}/completions", model, options.key, options.timeout, headers)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        came = runner.run(_all(target, options.page, load))
    if not came.whole and not came.traces:
        return INTERRUPTED
    _read_usage(came.traces)
    found = Measured(
        url=base.geturl(),
        page=options.page,
        model=model,
        settings=asdict(load),
        summary=summary(came.traces),
        traces=tuple(came.traces),
        busy=came.busy,
    )
    if options.as_json:
        sys.stdout.write(json.dumps(found.as_json(), indent=1) + "\n")
    else:
        sys.stdout.write(drawn(found, color=sys.stdout.isatty()))
    if options.svg is not None:
        with _told(options.svg):
            options.svg.write_text(svg(found), encoding="utf-8")
    return int(not any(trace.good for trace in came.traces)) if came.whole else INTERRUPTED


def bodies(page: str, load: LoadOptions, seed: int) -> Iterator[Body]:
    """Requests without end; no two prompts are alike after the ``same_prefix`` words, so no cache helps with more than these."""
    draw = random.Random(seed)  # noqa: S311 -- the same load each time
    known = {field.name for field in PROVIDERS[page].fields if field.status in (Status.DONE, Status.NO_OP)}
    usage = {"stream_options": {"include_usage": True}} if load.stream and "stream_options" in known else {}
    same = random.Random(0).choices(WORDS, k=load.same_prefix)  # noqa: S311
    while True:
        words = draw.choices(WORDS, k=draw.randint(*load.prompt_tokens) - load.same_prefix)
        most = draw.randint(*load.max_tokens)
        prompt = " ".join([*same, *words])
        yield {"prompt": prompt, "max_tokens": most, "temperature": 0, "stream": load.stream, **usage, **load.extra}


@dataclass(frozen=True)
class _Noting(Target):
    """A target that remembers what came to its end, for a load that never does."""

    ended: list[Trace] = field(default_factory=list)

    async def send(self, request: bytes, trace: Trace) -> None:
        await Target.send(self, request, trace)
        self.ended.append(trace)


@dataclass(frozen=True, slots=True)
class _Came:
    """What came of a load.

    Args:
        traces: of all requests; of a load that was interrupted, of those that had ended by then.
        busy: share of a core that the load itself took.
        whole: it was not interrupted.
    """

    traces: list[Trace]
    busy: float
    whole: bool


async def _all(target: _Noting, page: str, load: LoadOptions) -> _Came:
    """The load, after its warm-up, until it ends or is interrupted.

    Raises:
        UnusableServerError: the warm-up failed.
    """
    interrupted = on_interrupt()
    if not await unless(interrupted, _warm_up(target, page, load)):
        return _Came([], 0.0, whole=False)
    target.ended.clear()
    traces: list[Trace] = []

    async def measure() -> None:
        traces.extend(await _measured(target, page, load))

    began, spent = time.perf_counter(), time.process_time()
    whole = await unless(interrupted, measure())
    busy = (time.process_time() - spent) / max(time.perf_counter() - began, 1e-9)
    return _Came(traces if whole else target.ended, busy, whole)


async def _warm_up(target: Target, page: str, load: LoadOptions) -> None:
    """One request after the other; one that nobody answers is the last, for each of the others may take as long.

    Raises:
        UnusableServerError: the first request failed, and so did the others.
    """
    good, first = False, None
    for body in itertools.islice(bodies(page, load, load.seed + 1), load.warm_up):
        trace = Trace(time.perf_counter())
        await target.send(target.request(body), trace)
        good, first = good or trace.good, first or trace
        if trace.unanswered:
            break
    if first is not None and not good:
        kind, error = first.failure, first.error
        more = error.partition(f"{kind}: ")[2] or error  # which most begin with
        raise UnusableServerError(f"{target.url}: {kind}{f': {shorten(more, 300)}' if more else ''}.")


async def _measured(target: Target, page: str, load: LoadOptions) -> list[Trace]:
    made = bodies(page, load, load.seed)
    if load.clients and load.duration:
        return await sustained(target, made, load.clients, load.duration)
    if load.clients:
        return await over_http(target, Load([Job(body) for body in itertools.islice(made, load.requests)], load.clients))
    count = load.requests or round(load.rate * load.duration * 2) + 100
    times = [at for at in arrivals(load.rate, count, load.seed) if load.requests or at < load.duration]
    return await over_http(target, Load([Job(body, at) for body, at in zip(made, times, strict=False)]))


def _read_usage(traces: list[Trace]) -> None:
    """Of answers that were no streams: their bodies are here, and were not looked into while the load was on."""
    for trace in traces:
        if trace.good and trace.body and not trace.tokens:
            trace.read_usage(trace.body)
            trace.body = b""


def _require_writable(file: Path) -> None:
    """Before minutes of load; what is there stays, and nothing new does.

    Raises:
        OptionError: it is not.
    """
    place = Path(os.path.realpath(file))
    with _told(file):
        there = place.exists()
        place.open("ab").close()
        if not there:
            place.unlink()


@contextlib.contextmanager
def _told(file: Path) -> Iterator[None]:
    """
    Raises:
        OptionError: instead of ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise OptionError(f"--svg: {file} cannot be written: {error.strerror}.") from None
