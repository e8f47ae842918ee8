"""What of a guide can be begun and never be ended, so that a model that has begun it goes on to ``max_tokens``. Plain code.

A rule or schema that needs itself, in whichever way it goes on, has no finite text: a list whose members must each have a next one. It is
found by what ends for sure, with what ends through that, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from urllib.parse import unquote

from quintet.guides.gbnf import Chars, Choice, Name, Node, Sequence, Times

ROUNDS = 16
"""Each looks at all that is left, from either end in turn. Where more are needed, which nobody's guide does, all is taken to end."""

Rules = Mapping[str, Node]


def endless(names: Iterable[str], ends: Callable[[str, Set[str]], bool]) -> Set[str]:
    """Those that never end.

    Args:
        ends: whether one does if these do.
    """
    left, ending = list(names), set[str]()
    for _ in range(ROUNDS):
        waiting, left = left[::-1], []
        for name in waiting:
            if ends(name, ending):
                ending.add(name)
            else:
                left.append(name)
        if len(left) == len(waiting):
            return set(left)
    return set()


def ending_rules(rules: Rules) -> Rules:
    """The same texts without the ways that never end.

    Raises:
        ValueError: there is no other.
    """
    never = endless(rules, lambda name, found: _ending(rules[name], found) is not None)
    if not never:
        return rules
    if "root" in never:
        raise ValueError("the rule root has no text that ends")
    live = rules.keys() - never
    return {name: made for name, node in rules.items() if (made := _ending(node, live)) is not None}


def _ending(node: Node, live: Set[str]) -> Node | None:
    """The node without names of others than these; ``None`` = nothing is left of it."""
    match node:
        case Chars():
            return node
        case Name(name):
            return node if name in live else None
        case Times(inner, least, most):
            ending = _ending(inner, live)
            if ending is not None:
                return Times(ending, least, most)
            return None if least else Sequence(())
    parts = [_ending(part, live) for part in node.parts]
    kept = tuple(part for part in parts if part is not None)
    if isinstance(node, Choice):
        return Choice(kept) if kept else None
    return Sequence(kept) if len(kept) == len(parts) else None


def endless_places(places: Mapping[str, object]) -> Set[str]:
    """The schemas that are referred to and that no finite value fits, and the first place, ``#``, if it is such a one.

    Args:
        places: all schemas inside a schema.

    Raises:
        ValueError: a schema is nothing but itself, of which it cannot be said what fits it.
    """
    targets = (target(part) for part in places.values())
    names = dict.fromkeys(["#", *(name for name in targets if name is not None and name in places)])
    if circle := endless(names, lambda name, found: _fits(places[name], found, deep=False)):
        raise ValueError(f"must not use $ref in a circle, as from {min(circle)}")
    return endless(names, lambda name, found: _fits(places[name], found))


def target(schema: object) -> str | None:
    """Where a schema refers to."""
    found = schema.get("$ref") if isinstance(schema, dict) else None
    return unquote(found) if isinstance(found, str) else None


def _fits(schema: object, live: Set[str], *, deep: bool = True) -> bool:
    """A finite value may fit, if one fits each of these places.

    Args:
        deep: look at members and items too.
    """
    if not isinstance(schema, dict) or "const" in schema or "enum" in schema:
        return True
    to = target(schema)
    if to is not None and to not in live:
        return False
    if not all(_fits(part, live, deep=deep) for part in _list(schema, "allOf")):
        return False
    for key in ("anyOf", "oneOf"):
        parts = _list(schema, key)
        if parts and not any(_fits(part, live, deep=deep) for part in parts):
            return False
    if not deep:
        return True
    types = schema.get("type")
    kinds = {"object": _object_fits, "array": _array_fits}
    named = list(map(str, types if isinstance(types, list) else [types]))
    return not named or any(kind not in kinds or kinds[kind](schema, live) for kind in named)


def _object_fits(schema: dict[str, object], live: Set[str]) -> bool:
    properties = schema.get("properties")
    named = properties if isinstance(properties, dict) else {}
    others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
    return all(_fits(named.get(name, others), live) for name in _list(schema, "required") if isinstance(name, str))


def _array_fits(schema: dict[str, object], live: Set[str]) -> bool:
    least = schema.get("minItems", 0)
    if not isinstance(least, int):
        return True
    first = _list(schema, "prefixItems") or _list(schema, "items")
    rest = schema.get("additionalItems" if isinstance(schema.get("items"), list) else "items", True)
    return all(_fits(part, live) for part in first[:least]) and (least <= len(first) or _fits(rest, live))


def _list(schema: dict[str, object], key: str) -> list[object]:
    value = schema.get(key)
    return value if isinstance(value, list) else []
