"""``quintet check``: a server put through a provider's page."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from quintet.cli.asking import Server, UnusableServerError, first_model, parse_url
from quintet.cli.console import OptionError
from quintet.conformance.client import Client, excerpt
from quintet.conformance.item import Page, Result, Verdict
from quintet.conformance.pages import PAGES
from quintet.conformance.report import as_json, hidden, table
from quintet.conformance.run import run
from quintet.errors import shorten


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What to check, and how it is told. ``model``: empty = the first that the server lists; ``only``: ids of items, empty = all."""

    url: str
    page: str
    key: str
    model: str
    only: tuple[str, ...]
    timeout: float
    as_json: bool


def check(options: CheckOptions) -> int:
    """Print what came of each item; 1 if one of them differs, else 0.

    Raises:
        OptionError: a malformed option.
        UnusableServerError: the server does not answer the plainest request.
    """
    page = PAGES[options.page]
    known = [item.id for _, item in page.each()]
    for item in options.only:
        if item not in known:
            raise OptionError(f"--only must be one of {', '.join(known)}, got {shorten(item)}.")
    server, show = _server(options), hidden(options.key)
    model = options.model or first_model(server)
    client = Client(server.send, page, f"{server.base.path}/completions", model)
    _try(client, server, show)
    results = _run(client, page, options.only)
    if options.as_json:
        sys.stdout.write(as_json(page, server.base.geturl(), model, results, show))
    else:
        sys.stdout.write(f"{server.base.geturl()} as {page.title}, model {show(model)}\n")
        sys.stdout.writelines(f"{line}\n" for line in table(page, results, show))
    return int(any(result.verdict is Verdict.DIFFERS for result in results))


def _server(options: CheckOptions) -> Server:
    """The server to ask. A URL without a path leaves open what a Quintet server speaks there, so that is told; others ignore it."""
    base = parse_url(options.url)
    open_ = not urlsplit(options.url).path.rstrip("/")
    return Server(base, options.key, options.timeout, (("x-completions-dialect", options.page),) if open_ else ())


def _try(client: Client, server: Server, show: Callable[[str], str]) -> None:
    """The plainest request must be answered, or there is nothing to compare."""
    reply = server.send(client.call({"model": client.model, "prompt": "One", "max_tokens": 1}))
    if reply.problem or reply.status != 200:
        seen = reply.problem or f"status {reply.status}: {excerpt(reply.body)}"
        raise UnusableServerError(f"{server.base.geturl()}/completions does not complete a prompt: {show(seen)}")


def _run(client: Client, page: Page, only: Collection[str]) -> list[Result]:
    """The results, with a line on a terminal of how far it is."""
    total = len(only) or sum(1 for _ in page.each())
    results: list[Result] = []
    shown = sys.stderr.isatty()
    for result in run(client, page, only):
        results.append(result)
        if shown:
            sys.stderr.write(f"\r\x1b[K{len(results)} of {total}: {result.item.id}")
            sys.stderr.flush()
    if shown:
        sys.stderr.write("\r\x1b[K")
    return results
