"""What of a GBNF grammar the library's lexer reads in one piece, and the grammar in the library's notation. Plain code.

The library cuts a text into terminals as Lark does: each goes on for as long as any that may stand there can, and nothing is taken back.
GBNF knows no such cut: of ``[^ ]+ "=" [0-9]+`` the first part leaves the rest its ``=``. Terminals of one character are always right, as
no character is the beginning of another, but each character is then a step of the parser, and a mask takes ten times as long. So as
much as possible is one terminal::

    a rule that is not recursive is a regular expression; where all of them are, the whole grammar is one terminal
    else: terminals as large as they can be, and those that are too greedy in parts, until none is

Too greedy is one that can go on with a character that may come after the same text as well, where it or another that may stand in
the same place ends. Places are told apart by ``_Places``; where it takes two for one, more is cut than need be, never less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import reduce
from operator import or_

from quintet.guides.endless import ending_rules
from quintet.guides.gbnf import Chars, Choice, Name, Node, Range, Sequence, Times, read

MOST_NODES = 2_000
"""Of characters, sequences and so on in a grammar whose terminals are looked for; what is larger has those of one character."""

MOST_OF_ONE = 20_000
"""And in one that is one terminal."""

MOST_STEPS = 50_000
"""From one place to another, and of comparing two: a tenth of a second, of the half that a guide has."""


class _TooLargeError(Exception):
    """Of such size that it would take too long to say what may be one terminal."""


def notation(text: str) -> str:
    """A GBNF grammar in the library's notation.

    Raises:
        ValueError: it is none.
    """
    rules = ending_rules(read(text))
    named = {name: list(dict.fromkeys(_names(node))) for name, node in rules.items()}
    plain = _not_recursive(named)
    rules = {name: rules[name] for name in _used(named)}
    try:
        inliner = _Inliner({name: rules[name] for name in rules if name in plain}, MOST_OF_ONE if "root" in plain else MOST_NODES)
        whole = {name: inliner.inlined(rules[name]) for name in rules if name not in plain or name == "root"}
        return _written(whole, {whole["root"]} if "root" in plain else _cut(whole))
    except (_TooLargeError, RecursionError):
        return _written(rules, set())


def _names(node: Node) -> Iterator[str]:
    if isinstance(node, Name):
        yield node.name
    for part in _parts(node):
        yield from _names(part)


def _not_recursive(named: Mapping[str, Iterable[str]]) -> set[str]:
    """The rules that lead to none that leads to itself, by those that each names."""
    waits = {name: set(needed) for name, needed in named.items()}
    users: dict[str, list[str]] = {name: [] for name in named}
    for name, needed in waits.items():
        for used in needed:
            users[used].append(name)
    ready = [name for name, needed in waits.items() if not needed]
    for name in ready:  # which grows meanwhile
        for user in users[name]:
            waits[user].discard(name)
            if not waits[user]:
                ready.append(user)
    return set(ready)


def _used(named: Mapping[str, Iterable[str]]) -> Iterable[str]:
    """The rules that the first leads to, itself before all."""
    found, todo = {"root": None}, ["root"]
    for name in todo:  # which grows meanwhile
        new = [used for used in named[name] if used not in found]
        found |= dict.fromkeys(new)
        todo += new
    return found


class _Inliner:
    """Puts rules in place of their names.

    Args:
        rules: these; other names stay.
        most: nodes of all that is made.
    """

    def __init__(self, rules: Mapping[str, Node], most: int) -> None:
        self._rules = rules
        self._left = most

    def inlined(self, node: Node) -> Node:
        """The same texts; each node of it is in one place only.

        Raises:
            _TooLargeError: there would be more than ``most`` nodes.
        """
        self._left -= 1
        if self._left < 0:
            raise _TooLargeError
        match node:
            case Chars(ranges):
                return Chars(ranges)
            case Sequence(parts):
                return Sequence(tuple(self.inlined(part) for part in parts))
            case Choice(parts):
                return Choice(tuple(self.inlined(part) for part in parts))
            case Times(inner, least, most):
                return Times(self.inlined(inner), least, most)
        return self.inlined(self._rules[node.name]) if node.name in self._rules else node


def _cut(rules: Mapping[str, Node]) -> Set[Node]:
    """The terminals, as large as they can be without being too greedy."""
    places = _Places(rules)
    split: set[Node] = set()
    while greedy := places.too_greedy(split) - split:
        split |= greedy
    return places.regular - split


@dataclass(slots=True)
class _Ends:
    """What a node's texts begin and end with, as sets of places: a bit each.

    Args:
        empty: it may be nothing at all.
    """

    empty: bool
    first: int
    last: int


_NONE = _Ends(empty=False, first=0, last=0)


class _Places:
    """Each character of the rules' bodies, and what may come after it.

    A rule's end is followed by what follows any of its names. So this takes more for possible than is, which costs terminals only.
    """

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._number: dict[Node, int] = {}
        self._bytes: list[int] = []  # the first ones of a place's characters, as a set
        self._ends: dict[Node, _Ends] = {}
        self._rule_ends: dict[str, _Ends] = dict.fromkeys(rules, _NONE)
        self.regular: set[Node] = set()
        for node in rules.values():
            self._enter(node)
        before: dict[str, _Ends] = {}
        while before != self._rule_ends:
            before = self._rule_ends
            self._rule_ends = {name: self._found(node) for name, node in rules.items()}
        self._left = MOST_STEPS  # of ``too_greedy``, however often it is asked

    def _enter(self, node: Node) -> None:
        """Number the places in a node, and say of it and its parts whether they are regular."""
        match node:
            case Chars(ranges):
                self._number[node] = len(self._bytes)
                self._bytes.append(_first_bytes(ranges))
            case Sequence(parts) | Choice(parts):
                for part in parts:
                    self._enter(part)
            case Times(inner):
                self._enter(inner)
        if all(part in self.regular for part in _parts(node)) and not isinstance(node, Name):
            self.regular.add(node)

    def _found(self, node: Node) -> _Ends:
        """The node's ends, as far as those of the rules that it names are known."""
        match node:
            case Chars():
                made = _Ends(False, place := 1 << self._number[node], place)
            case Name(name):
                made = self._rule_ends[name]
            case Sequence(parts):
                made = _Ends(empty=True, first=0, last=0)
                for part in parts:
                    then = self._found(part)
                    first = made.first | (then.first if made.empty else 0)
                    made = _Ends(made.empty and then.empty, first, then.last | (made.last if then.empty else 0))
            case Choice(parts):
                each = [self._found(part) for part in parts]
                made = _Ends(any(ends.empty for ends in each), _union(ends.first for ends in each), _union(ends.last for ends in each))
            case Times(inner, least, most):
                made = self._found(inner)
                made = _Ends(made.empty or least == 0, made.first, made.last) if most != 0 else _Ends(empty=True, first=0, last=0)
        self._ends[node] = made
        return made

    def too_greedy(self, split: Set[Node]) -> Set[Node]:
        """Terminals that would take what may be another's, if all but these are terminals; all, where that takes too long to say."""
        after = _After(self._ends, self._number, self.regular - split)
        for node in self._rules.values():
            after.enter(node, None)
        self._left -= after.steps
        ends, goes_on = (list(map(self._first_bytes, places)) for places in (after.ends, after.inside))
        starts = self._rule_ends["root"].first
        # Pairs of places to which one text may have come: looked at in sets, each place of the one with each of the other.
        todo, seen, done, greedy = [(starts, starts)], set[tuple[int, int]](), [0] * len(self._bytes), set[Node]()
        while todo:
            places, others = todo.pop()
            for place in _bits(places):
                new = others & ~done[place]
                done[place] |= new
                self._left -= 1 + new.bit_count()
                if self._left < 0:
                    return self.regular
                for other in _bits(new):
                    if not self._bytes[place] & self._bytes[other]:
                        continue
                    if ends[place] & goes_on[other]:
                        greedy.add(after.terminal[other])
                    for together in ((after.inside[place], after.inside[other]), (after.next[place], after.next[other])):
                        if all(together) and together not in seen:
                            seen.add(together)
                            todo.append(together)
        return greedy

    def _first_bytes(self, places: int) -> int:
        return _union(self._bytes[place] for place in _bits(places))


class _After:
    """What comes after each place, as sets of places.

    Args:
        terminals: so much is in one piece.
    """

    def __init__(self, ends: Mapping[Node, _Ends], number: Mapping[Node, int], terminals: Set[Node]) -> None:
        self._ends_of, self._number, self._terminals = ends, number, terminals
        self.inside = [0] * len(number)
        """In the same terminal."""
        self.next = [0] * len(number)
        """In the next one."""
        self.ends = [0] * len(number)
        """In the next one that there must be: some of what may be one terminal may be two as well."""
        self.terminal: list[Node] = [Sequence(())] * len(number)
        self.steps = 0

    def enter(self, node: Node, terminal: Node | None) -> None:
        terminal = terminal or (node if node in self._terminals else None)
        match node:
            case Chars():
                self.terminal[self._number[node]] = terminal or node
            case Sequence(parts):
                last = 0
                for part in parts:
                    then = self._ends_of[part]
                    self._add(last, then.first, terminal, then.first)
                    last = then.last | (last if then.empty else 0)
            case Times(inner, least, most) if most is None or most > 1:
                then = self._ends_of[inner]
                for part in inner.parts if isinstance(inner, Choice) else (inner,):
                    again = self._ends_of[part]
                    joined = most is None and least <= 1 and isinstance(part, Times) and part.most is None and part.least <= 1
                    self._add(again.last, then.first, terminal, then.first & ~again.first if joined else then.first)
        for part in _parts(node):
            self.enter(part, terminal)

    def _add(self, last: int, first: int, terminal: Node | None, needed: int) -> None:
        for place in _bits(last):
            self.steps += 1
            if terminal:
                self.inside[place] |= first
            else:
                self.next[place] |= first
                self.ends[place] |= needed


def _parts(node: Node) -> tuple[Node, ...]:
    match node:
        case Sequence(parts) | Choice(parts):
            return parts
        case Times(inner):
            return (inner,)
    return ()


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def _bits(places: int) -> Iterator[int]:
    while places:
        lowest = places & -places
        yield lowest.bit_length() - 1
        places ^= lowest


def _first_bytes(ranges: Iterable[Range]) -> int:
    """Of their characters' UTF-8, as a set: a terminal goes on, or does not, byte by byte."""
    made = 0
    for first, last in ranges:
        made |= (2 << chr(last).encode()[0]) - (1 << chr(first).encode()[0])
    return made


def _written(rules: Mapping[str, Node], terminals: Set[Node]) -> str:
    names = {name: "start" if name == "root" else f"r{number}" for number, name in enumerate(rules)}
    return "\n".join(f"{names[name]}: {_rule(node, names, terminals)}" for name, node in rules.items())


def _rule(node: Node, names: Mapping[str, str], terminals: Set[Node]) -> str:
    if node in terminals or isinstance(node, Chars):
        return f"/{found}/" if (found := _regex(node)) else '""'
    match node:
        case Name(name):
            return names[name]
        case Sequence(parts):
            return " ".join(_rule(part, names, terminals) for part in parts) or '""'
        case Choice(parts):
            return f"({' | '.join(_rule(part, names, terminals) for part in parts)})"
    return f"({_rule(node.inner, names, terminals)}){_times(node)}"


def _regex(node: Node) -> str:
    match node:
        case Chars(ranges):
            inside = "".join(_character(first) + (f"-{_character(last)}" if first < last else "") for first, last in ranges)
            return inside if _is_single(node) else f"[{inside}]"
        case Sequence(parts):
            return "".join(_regex(part) for part in parts)
        case Choice(parts):
            return f"(?:{'|'.join(_regex(part) for part in parts)})"
        case Times(inner):
            return f"(?:{_regex(inner)}){_times(node)}"
    raise AssertionError(node)


def _is_single(node: Chars) -> bool:
    return node.ranges[0][0] == node.ranges[-1][1]


def _times(node: Times) -> str:
    return f"{{{node.least},{'' if node.most is None else node.most}}}"


def _character(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\x{{{code:x}}}"
