"""Requests that an item sends and the answers that it judges: JSON, streams and refusals. Pure: sending is handed in.

What comes from the server is anybody's: nothing is taken to be there, or to be of a type, that was not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quintet.conformance.item import Call, Differs, Fields, Page, Reply, Send, Untold

PROMPT = "Once upon a time"
SHORT, LONG = 8, 16
"""Tokens of an answer that is looked at, and of one in which something is to happen."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_BUSY = (429, 503)
"""Statuses that are about the server's load, and not about what was sent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer's JSON body, or a chunk of a stream."""

    reply: Reply
    body: dict[str, Any]

    def member(self, path: str, *kinds: str) -> Any:
        """The member at a path such as ``choices.0.text``, which must be there and of one of these JSON types."""
        return member(self.body, path, *kinds)

    def has(self, path: str) -> bool:
        """Whether it is there, and not null."""
        try:
            return member(self.body, path) is not None
        except Differs:
            return False

    def has_list(self, path: str) -> bool:
        """Whether it is there, and an array."""
        return self.has(path) and isinstance(member(self.body, path), list)

    @property
    def choices(self) -> list[dict[str, Any]]:
        """The list of choices, each an object."""
        found = self.member("choices", "array")
        for place in range(len(found)):
            self.member(f"choices.{place}", "object")
        return list(found)

    @property
    def texts(self) -> list[str]:
        """The choices' texts."""
        return [str(self.member(f"choices.{place}.text", "string")) for place in range(len(self.choices))]

    @property
    def text(self) -> str:
        """The first choice's text."""
        return str(self.member("choices.0.text", "string"))

    @property
    def finish(self) -> object:
        """The first choice's reason to end."""
        return self.member("choices.0.finish_reason")

    @property
    def completion_tokens(self) -> int:
        """As the usage tells."""
        return int(self.member("usage.completion_tokens", "integer"))


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream's chunks, in order. ``done``: it ended with ``data: [DONE]``; ``fields``: other fields of its events than data."""

    reply: Reply
    chunks: tuple[Answer, ...]
    done: bool
    fields: tuple[str, ...]

    @property
    def text(self) -> str:
        """The first choice's text, put together."""
        return "".join(one["text"] for one in self.choices() if one.get("index", 0) == 0 and isinstance(one.get("text"), str))

    def choices(self) -> Iterator[dict[str, Any]]:
        """Every chunk's choices."""
        for chunk in self.chunks:
            yield from chunk.choices


@dataclass
class Client:
    """One server under test, asked about one page.

    An exchange that was had before is not had again, unless ``take`` says that another is wanted: without a seed a second draw
    may differ. One that failed, or met a limit, says nothing of the next, and is had again.

    Args:
        path: of completions, on the server.
        model: what requests name.
    """

    send: Send
    page: Page
    path: str
    model: str
    last: tuple[Call, Reply] | None = None
    _kept: dict[tuple[Call, int], Reply] = field(default_factory=dict)

    def reply(self, body: Fields, take: int = 0, headers: Sequence[tuple[str, str]] = (), keyed: bool = True) -> Reply:
        """The answer to this very body, whatever it says of that; a body without ``model`` has none."""
        call = self.call(body, headers, keyed)
        known = self._kept.get((call, take)) or self.send(call)
        self.last = call, known
        if known.problem:
            raise Differs(known.problem)
        if known.status in _BUSY:
            raise Untold(f"the server is over a limit and answers {known.status}")
        self._kept[call, take] = known
        return known

    def call(self, body: Fields, headers: Sequence[tuple[str, str]] = (), keyed: bool = True) -> Call:
        """The request with this very body."""
        sent = json.dumps(body, separators=(",", ":")).encode()
        return Call("POST", self.path, (("content-type", "application/json"), *headers), sent, keyed)

    def body(self, fields: Fields) -> dict[str, Any]:
        """A whole request's body: a model, a prompt and few tokens, where ``fields`` do not say otherwise."""
        return {"model": self.model, "prompt": PROMPT, "max_tokens": SHORT, **fields}

    def ask(self, take: int = 0, **fields: Any) -> Answer:
        """A JSON answer with these fields; it must be one."""
        return self.taken(self.reply(self.body(fields), take))

    def greedy(self, take: int = 0, **fields: Any) -> Answer:
        """The same with nothing but the likeliest token."""
        return self.ask(take, **{**self.page.greedy, **fields})

    def stream(self, take: int = 0, **fields: Any) -> Stream:
        """A stream with these fields, greedy."""
        return self.streamed(self.reply(self.body({**self.page.greedy, "stream": True, **fields}), take))

    def streamed(self, reply: Reply) -> Stream:
        """A reply that must be a 200 with an event stream."""
        self.accepted(reply)
        kind = reply.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise Differs(f"a stream was asked for, and the content type is {kind!r}")
        return _stream(reply)

    def taken(self, reply: Reply) -> Answer:
        """A reply that must be a 200 with a JSON object."""
        self.accepted(reply)
        return Answer(reply, parsed(reply.body))

    def accepted(self, reply: Reply) -> None:
        """A reply that must be a 200."""
        if reply.status != 200:
            raise Differs(f"status {reply.status}: {excerpt(reply.body)}")

    def refused(self, **fields: Any) -> Reply:
        """A reply that must be a refusal of what the client sent, a 4xx."""
        reply = self.reply(self.body({**self.page.greedy, **fields}))
        if not 400 <= reply.status < 500:
            shown = ", ".join(f"{name}: {json.dumps(value)}" for name, value in fields.items())
            raise Differs(f"{shown} should be refused, and the status is {reply.status}")
        return reply


def member(body: object, path: str, *kinds: str) -> Any:
    """The member of a JSON value at a path; it must be there, and of one of these JSON types if any are named."""
    at = body
    for name in path.split("."):
        inside = isinstance(at, dict) and name in at
        if isinstance(at, list) and name.isdigit() and int(name) < len(at):
            at = at[int(name)]
        elif isinstance(at, dict) and inside:
            at = at[name]
        else:
            raise Differs(f"there is no {path}")
    if kinds and not any(is_of(at, kind) for kind in kinds):
        raise Differs(f"{path} should be {' or '.join(kinds)}, and is {shown(at)}")
    return at


def is_of(value: object, kind: str) -> bool:
    """Whether a JSON value is of a JSON type; ``true`` is no number."""
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def need(holds: bool, seen: str) -> None:
    """Raises ``Differs`` with what was seen unless it holds."""
    if not holds:
        raise Differs(seen)


def shown(value: object, limit: int = 80) -> str:
    """A JSON value in a few characters, for a message."""
    text = json.dumps(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def excerpt(body: bytes, limit: int = 160) -> str:
    """A body's beginning on one line, for a message."""
    text = " ".join(body[: 4 * limit].decode("utf-8", "replace").split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def parsed(body: bytes) -> dict[str, Any]:
    """A body that must be a JSON object."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Differs(f"the body is not JSON: {excerpt(body)}") from None
    if not isinstance(value, dict):
        raise Differs(f"the body is no JSON object: {excerpt(body)}")
    return value


def _stream(reply: Reply) -> Stream:
    """An event stream (WHATWG HTML, 9.2): events end with an empty line, and lines with a colon in front are comments."""
    chunks: list[Answer] = []
    fields: list[str] = []
    done = False
    for event in reply.body.decode("utf-8", "replace").replace("\r\n", "\n").split("\n\n"):
        data: list[str] = []
        for line in event.split("\n"):
            name, _, value = line.partition(":")
            if name == "data":
                data.append(value.removeprefix(" "))
            elif name:
                fields.append(name)
        if not data:
            continue
        need(not done, "there is more after data: [DONE]")
        done = data == ["[DONE]"]
        if not done:
            chunks.append(Answer(reply, parsed("\n".join(data).encode())))
    return Stream(reply, tuple(chunks), done, tuple(fields))
