"""Patterns that look ahead at their beginning, as patterns without that, of which a text must match all. Plain code.

Zod's pattern of an email address is ``^(?!\\.)(?!.*\\.\\.)...``, Pydantic's of a decimal was ``^(?!^[-+.]*$)...``, a password's by hand is
``^(?=.*[A-Z])(?=.*\\d).{8,}$``. No mask can follow a look ahead, but what is looked for at the beginning is a pattern of its own, and what
must not be there has, in these forms, one that says so. Others are left as they are, and refused with what else cannot be followed.
"""

from __future__ import annotations

from collections.abc import Iterator

from quintet.guides.pattern import ATOM

_ANY = r"[\s\S]"


def without_lookahead(pattern: str) -> tuple[str, ...]:
    """Patterns that together admit what this one does, or less: a line break ends what ``.*`` looks at, and here it does not."""
    others: list[str] = []
    at = 1
    while pattern[:1] == "^" and (end := _group_end(pattern, at)):
        body = pattern[at + 3 : end - 1]
        made = [_required(body)] if pattern[at + 2] == "=" else [_banned(each) for each in _alternatives(body)]
        others += [other for other in made if other]
        if not all(made):
            return (pattern,)
        at = end
    rest = f"^{pattern[at:]}"
    if not others or len(_alternatives(rest)) > 1 or rest[1:2] in ("*", "+", "?", "{"):
        return (pattern,)
    return rest, *others


def _atoms(pattern: str, at: int = 0) -> Iterator[tuple[str, int, int]]:
    """Each with where it ends, and in how many groups that is: -1 = in none of those that begin behind ``at``, nor in the one around it."""
    depth = 0
    for atom in ATOM.finditer(pattern, at):
        depth += atom[0].startswith("(") - (atom[0] == ")")
        yield atom[0], atom.end(), depth


def _group_end(pattern: str, at: int) -> int:
    """Where a look ahead ends that begins there; 0 = there is none."""
    if pattern[at : at + 3] not in ("(?=", "(?!"):
        return 0
    return next((end for _, end, depth in _atoms(pattern, at + 3) if depth < 0), 0)


def _alternatives(pattern: str) -> list[str]:
    """What stands between ``|`` outside groups."""
    made, begin = [], 0
    for text, end, depth in _atoms(pattern):
        if text == "|" and not depth:
            made.append(pattern[begin : end - 1])
            begin = end
    return [*made, pattern[begin:]]


def _required(body: str) -> str:
    return "|".join(f"^{each.removeprefix('^')}" for each in _alternatives(body))


def _banned(body: str) -> str | None:
    """What admits the texts that do not begin so; ``None`` = not one of these forms."""
    texts = [text for text, _, _ in _atoms(body.removeprefix("^"))]
    for rest in ([".", "*", "$"], [".", "*"]):
        if texts[-len(rest) :] == rest and len(texts) > len(rest):
            texts = texts[: -len(rest)]  # whatever follows
    match texts:
        case [one] if other := _but(one):
            return f"^(?:{other}{_ANY}*)?$"
        case [one, "*", "$"] if other := _but(one):
            return other
        case [one, "+", "$"] if other := _but(one):
            return f"^(?:{_ANY}*{other}{_ANY}*)?$"
        case [".", "*", one] if other := _but(one):
            return f"^{other}*$"
        case [".", "*", one, two] if one == two and (other := _but(one)):
            return f"^(?:{one}?{other})*{one}?$"
    return None


def _but(atom: str) -> str:
    """Every character but those of an atom; empty = it is not such a one."""
    if atom.startswith("[^") and atom.endswith("]"):
        # A first member ^ would become the sign of what is not in the set.
        return f"[\\{atom[2:]}" if atom[2] == "^" else f"[{atom[2:]}"
    if atom.startswith("[") and atom.endswith("]"):
        return f"[^{atom[1:]}"
    if len(atom) == 1:
        if atom in ".^$()|*+?{":
            return ""
        return f"[^\\{atom}]" if atom in "]\\-" else f"[^{atom}]"
    return f"[^{atom}]" if atom.startswith("\\") and atom[1:2] not in ("b", "B") else ""
