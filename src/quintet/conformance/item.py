"""What is checked, as values: a page, its items, and what came of one. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from quintet.conformance.client import Client

Fields: TypeAlias = Mapping[str, Any]
"""Members of a request's body."""


class Differs(Exception):  # noqa: N818 -- named for what was found
    """The server does not do what the sentence says; the text says what was seen."""


class Untold(Exception):  # noqa: N818
    """What the server does cannot be told from outside, or not with the model that it serves; the text says why."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer: ``headers`` by their names in small letters; ``problem``: why there is none, or not all of it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A request to send. ``keyed``: with the key that the user gave, if any."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    keyed: bool = True


Send: TypeAlias = Callable[[Call], Reply]
"""Sends a request and waits for the answer; a connection that fails is a ``Reply`` with a ``problem``."""


Check: TypeAlias = "Callable[[Client], None]"
"""Asks the server, and raises ``Differs`` or ``Untold``; if it raises nothing the server does as the sentence says."""


class Verdict(enum.Enum):
    """What came of an item."""

    PASS = "pass"  # noqa: S105 -- no password
    DIFFERS = "differs"
    UNTOLD = "cannot be told"


@dataclass(frozen=True, slots=True)
class Result:
    """An item's verdict, what was seen or why nothing can be, and the last exchange before it was given."""

    group: str
    item: Item
    verdict: Verdict
    seen: str
    exchange: tuple[Call, Reply] | None


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that a page says.

    Args:
        id: the field's or member's name, with its parents' names and dots before it.
        sentence: the page's own words.
        check: see ``Check``.
    """

    id: str
    sentence: str
    check: Check


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A provider's page.

    Args:
        greedy: fields that leave nothing but the likeliest token, as far as the page has words for that.
        groups: title -> items, in the page's order.
    """

    name: str
    title: str
    url: str
    greedy: Fields
    groups: Mapping[str, tuple[Item, ...]]

    def each(self) -> Iterator[tuple[str, Item]]:
        """Each item with its group's title."""
        for title, items in self.groups.items():
            yield from ((title, item) for item in items)
