"""A run over a page's items. Pure: sending is handed in."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from quintet.conformance.client import Client
from quintet.conformance.item import Differs, Page, Result, Untold, Verdict

_SHAPELESS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What a judge meets in an answer of a shape that it did not look for: of one item, and no reason to lose what came of the others."""


def run(client: Client, page: Page, only: Collection[str] = ()) -> Iterator[Result]:
    """Check each item, or those of ``only``; a result as soon as it is known."""
    for group, item in page.each():
        if only and item.id not in only:
            continue
        client.last, seen = None, ""
        try:
            item.check(client)
            verdict = Verdict.PASS
        except Differs as error:
            verdict, seen = Verdict.DIFFERS, str(error)
        except Untold as error:
            verdict, seen = Verdict.UNTOLD, str(error)
        except _SHAPELESS as error:
            verdict, seen = Verdict.DIFFERS, f"the answer has not the page's shape ({type(error).__name__}: {error})"
        yield Result(group, item, verdict, seen, client.last)
