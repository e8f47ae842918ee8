"""``quintet top``: what a server does now, as its ``/metrics`` tell."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from quintet.cli.asking import REFUSED, Server, UnusableServerError, parse_url
from quintet.cli.scrape import Between, Look, Scrape, look
from quintet.conformance.item import Call
from quintet.conformance.report import hidden
from quintet.errors import counted, shorten
from quintet.models.files import human

ANSWER_S = 5.0
_HEADS = (
    *("state", "running", "waiting", "choices/s", "tokens/s", "prompt/s"),
    *("KV cache", "hits", "first p50", "first p95", "gap p50", "gap p95", "CPUs", "memory"),
)
_GAP = 2
"""Blanks between two columns."""
_UNBOUNDED = 400
"""Characters of a line of a file."""
_NAME = 16
"""Characters of a line of a model's name where it has to give way."""
_printable = hidden("")
"""Names and versions are the server's, whoever's it is, and go to a terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions:
    """Whom to watch, and how it is told."""

    url: str
    key: str
    interval: float
    once: bool
    as_json: bool


class AwayError(Exception):
    """There is no page of metrics now; the text says why."""


def top(options: TopOptions) -> int:
    """Watch until interrupted, or once; the exit code.

    Raises:
        OptionError: a malformed URL.
        UnusableServerError: the server shows no metrics to whoever asks, or is not there and it is to be looked at only once.
    """
    server, path = _server(options)
    try:
        if options.once or options.as_json or not sys.stdout.isatty():
            _lines(options, server, path)
        else:
            _screen(options, server, path)
    except KeyboardInterrupt:
        pass  # the way to leave
    return 0


def _server(options: TopOptions) -> tuple[Server, str]:
    """Whom to ask, and where; a URL of the server, of its API or of the metrics themselves will do."""
    base = parse_url(options.url)
    given = urlsplit(options.url).path.rstrip("/")
    return Server(base, options.key, ANSWER_S), given if given.endswith("/metrics") else "/metrics"


def scrape(server: Server, path: str) -> Scrape:
    """The page as it is now.

    Raises:
        AwayError: there is none now.
        UnusableServerError: there never will be.
    """
    reply = server.once(Call("GET", path))
    where = f"{server.base.scheme}://{server.base.netloc}{path}"
    if reply.problem or not reply.status:
        raise AwayError(f"{where}: {reply.problem or 'no answer'}")
    if reply.status in REFUSED:
        raise UnusableServerError(f"{where} is not shown to everybody (status {reply.status}); give a key of scope metrics with --key.")
    if reply.status == 404:
        raise UnusableServerError(f"{where} is not there; with --admin-listen it is on that address.")
    if reply.status != 200:
        raise AwayError(f"{where}: status {reply.status}")
    try:
        return Scrape.of(reply.body.decode(), time.monotonic())
    except ValueError:
        raise UnusableServerError(f"{where} is no page of metrics: {shorten(reply.body[:80])}.") from None


def _looks(options: TopOptions, server: Server, path: str) -> Iterator[Look | AwayError]:
    """One after each interval, but the first, with which the second is compared."""
    before: Scrape | None = None
    while True:
        began = time.monotonic()
        try:
            now = scrape(server, path)
        except AwayError as error:
            yield error
        else:
            if before is not None:
                yield look(Between(before, now))
            before = now
        time.sleep(max(0.0, began + options.interval - time.monotonic()))


def _lines(options: TopOptions, server: Server, path: str) -> None:
    for seen in _looks(options, server, path):
        if isinstance(seen, Look):
            sys.stdout.write(json.dumps(asdict(seen)) + "\n" if options.as_json else _text(seen, options))
            sys.stdout.flush()
        elif options.once:
            raise UnusableServerError(f"{seen}.")
        else:
            sys.stderr.write(f"{seen}\n")
        if options.once:
            return


def _screen(options: TopOptions, server: Server, path: str) -> None:
    last: RenderableType = Text("...", style="dim")
    with Live(last, console=Console(highlight=False), screen=True, auto_refresh=False) as live:
        for seen in _looks(options, server, path):
            if isinstance(seen, AwayError):
                live.update(Group(Text(f"{seen}; waiting for it", style="red"), last), refresh=True)
            else:
                last = shown(seen, options.url)
                live.update(last, refresh=True)


def _text(seen: Look, options: TopOptions) -> str:
    """A look in lines; an empty one parts it from the next."""
    width = Console().width if sys.stdout.isatty() else _UNBOUNDED
    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(shown(seen, options.url))
    return capture.get() + ("" if options.once else "\n")


def shown(seen: Look, url: str) -> RenderableType:
    """A line for the server, and one for each model; more than one where the terminal is narrow."""
    rows = {name: _cells(model) for name, model in seen.models.items()}
    return Group(Text(url, style="bold"), Text(_printable(_server_line(seen))), Text(), _Models(rows))


@dataclass(frozen=True, slots=True)
class _Models:
    """The columns of all models, in as many tables as the width makes of them."""

    rows: dict[str, list[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max(map(len, column)) + _GAP for column in zip(_HEADS, *self.rows.values(), strict=True)]
        name = max(map(len, ("model", *self.rows)))
        if name + sum(widths) > options.max_width:
            name = min(name, _NAME)  # a long name gives way before a number does
        first, used = 0, name
        for at, width in enumerate(widths):
            if used + width > options.max_width and at > first:
                yield from (self._table(slice(first, at), name), Text())
                first, used = at, name
            used += width
        yield self._table(slice(first, None), name)

    def _table(self, chosen: slice, name_width: int) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
        table.add_column("model", overflow="fold", max_width=name_width)
        for head in _HEADS[chosen]:
            table.add_column(head, justify="right", no_wrap=True)
        for name, cells in self.rows.items():
            table.add_row(Text(_printable(name)), *cells[chosen])
        return table


def _server_line(seen: Look) -> str:
    told = seen.server
    answers = ", ".join(f"{status} {rate:g}/s" for status, rate in told["answers_per_s"].items()) or "no answers"
    refused = ", ".join(f"{reason} {rate:g}/s" for reason, rate in told["refused_per_s"].items())
    parts = [f"Quintet {told['version']}" if told["version"] else "", answers, f"refused: {refused}" if refused else ""]
    if told["left_per_s"]:
        parts.append(f"clients left {told['left_per_s']:g}/s")
    if told["cpus"] is not None:
        parts.append(counted(told["cpus"], "CPU"))
    if told["memory_bytes"]:
        parts.append(human(int(told["memory_bytes"])))
    if told["machine_memory_used"]:
        parts.append(f"memory of the machine {told['machine_memory_used']:.0%} used")
    return "   ".join(part for part in parts if part)


def _cells(model: dict[str, float | bool | None]) -> list[str]:
    counts = [_number(model[name], "{:.0f}") for name in ("running", "waiting")]
    rates = [_number(model[name], "{:,.1f}") for name in ("choices_per_s", "generated_per_s", "prompt_per_s")]
    shares = [_number(model[name], "{:.0%}") for name in ("kv_cache_used", "cache_hits")]
    times = [_milliseconds(model[name]) for name in ("ttft_p50_s", "ttft_p95_s", "gap_p50_s", "gap_p95_s")]
    memory = model["engine_memory_bytes"]
    return [_state(model), *counts, *rates, *shares, *times, _number(model["engine_cpus"], "{:.2f}"), human(int(memory)) if memory else "-"]


def _state(model: dict[str, float | bool | None]) -> str:
    if model["ready"] is None:
        return "-"
    if model["ready"]:
        return "ready"
    return "away" if model["loaded"] is False else "not ready"


def _number(value: float | bool | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _milliseconds(value: float | bool | None) -> str:
    return "-" if value is None else f"{1000 * value:,.0f} ms"
