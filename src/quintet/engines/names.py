"""Which model a name in a request means: served names, aliases, patterns. Plain code over values.

A name is looked for as it was sent, then in each form that the provider's clients give it (``accounts/me/models/NAME``). Names that are
written out go before patterns, and patterns count in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quintet.errors import ModelError, shorten

ANY = "*"
"""Stands in an alias for any text, also for none, and for slashes."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a name means.

    Args:
        model: the model's first name.
        name: to answer with: the spelling under which it was found.
    """

    model: str
    name: str


@dataclass(frozen=True, slots=True)
class Names:
    """Every name that a request may use. See ``name_models``.

    Args:
        exact: name -> the model's first name, in the order in which they are listed; the first is the default.
        patterns: (pattern, the model's first name).
    """

    exact: Mapping[str, str]
    patterns: tuple[tuple[str, str], ...] = ()

    @property
    def default(self) -> Found:
        """For a request that names no model."""
        name = next(iter(self.exact))
        return Found(self.exact[name], name)

    def find(self, name: str, forms: Sequence[str] = ()) -> Found | None:
        """
        Args:
            name: empty = the default.
            forms: what the provider's clients make of a name, as regular expressions whose one group is the name.
        """
        if not name:
            return self.default
        spellings = [name, *(match[1] for form in forms if (match := re.fullmatch(form, name, re.DOTALL)))]
        for spelling in spellings:
            if spelling in self.exact:
                return Found(self.exact[spelling], spelling)
        for spelling in spellings:
            for pattern, model in self.patterns:
                if matches(pattern, spelling):
                    return Found(model, spelling)
        return None

    def adding(self, name: str, model: str) -> Names:
        """With another name of a model that has one.

        Raises:
            ModelError: no request can have it, or it is there.
        """
        exact = dict(self.exact)
        _require_plain(name)
        _add(exact, name, model)
        return Names(exact, self.patterns)

    def without(self, name: str) -> Names:
        """Without a name that is there."""
        return Names({other: model for other, model in self.exact.items() if other != name}, self.patterns)


def name_models(models: Sequence[Sequence[str]], aliases: Iterable[tuple[str, str]] = ()) -> Names:
    """
    Args:
        models: the names of each, at least one; the first names the model.
        aliases: (name or pattern, the name of a model).

    Raises:
        ModelError: a name that no request can have, that two models would have, or that an alias names in vain.
    """
    exact: dict[str, str] = {}
    for names in models:
        for name in names:
            _require_plain(name)
            _add(exact, name, names[0])
    named = dict(exact)
    patterns: dict[str, str] = {}
    for alias, name in aliases:
        if name not in named:
            raise ModelError(f"the alias {shorten(alias)} is for {shorten(name)}, which is not served here; served: {', '.join(named)}.")
        _add(patterns if ANY in alias else exact, alias, named[name])
    return Names(exact, tuple(patterns.items()))


def matches(pattern: str, name: str) -> bool:
    """Whether ``name`` is ``pattern`` with some text in place of each ``*``; in linear time, whoever wrote the pattern."""
    head, *parts = pattern.split(ANY)
    if not parts:
        return name == pattern
    *middle, tail = parts
    if len(name) < len(head) + len(tail) or not name.startswith(head) or not name.endswith(tail):
        return False
    at, end = len(head), len(name) - len(tail)
    for part in middle:  # the leftmost place leaves the most to the others
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def _require_plain(name: str) -> None:
    if ANY in name:
        raise ModelError(f"a model's name must not hold {ANY}, got {shorten(name)}; only an alias can be a pattern.")


def _add(names: dict[str, str], name: str, model: str) -> None:
    if not name or not name.isprintable() or name != name.strip():
        raise ModelError(f"a model's name must be printable, and neither empty nor with spaces around it, got {shorten(name)}.")
    if name in names:
        raise ModelError(f"the name {shorten(name)} is given twice; write NAME=REFERENCE to give a model another name.")
    names[name] = model
