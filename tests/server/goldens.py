"""The goldens: whole requests and answers of every dialect, in ``tests/golden/<dialect>/<case>/``.

``request.json`` is sent as it is; ``response.http`` is the status, the headers, an empty line and the body. The toy engine answers, or,
where there is a ``backend.json``, the scripted backend with those settings: it breaks, loads, and says what the toy never says. With
``{"seeing": FAMILY}`` it is one that sees images as that family does. With ``"guarded": true`` a moderation model is served beside it, as
``guard``, which finds unsafe what has "BAD" in it.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from tests.server.asgi import SOURCE, Answer, acall
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend
from tests.server.toy import MODEL, toy_app
from tests.support.guard import Guard
from tests.support.seeing import GEMMA, IDEFICS, SeeingBackend

from quintet.backends.base import State
from quintet.config import ServerConfig
from quintet.dialects.catalog import PROVIDERS

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(f"{path.parent.name}/{path.name}" for name in PROVIDERS for path in (GOLDEN / name).iterdir())
TOY = [name for name in CASES if not (GOLDEN / name / "backend.json").exists()]


def sent(name: str) -> bytes:
    """The request's body."""
    return (GOLDEN / name / "request.json").read_bytes().rstrip(b"\n")


def recorded(name: str) -> Answer:
    """The answer's status, headers and body."""
    head, _, body = (GOLDEN / name / "response.http").read_bytes().partition(b"\n\n")
    status, *headers = head.decode().split("\n")
    return Answer(int(status), [(line.partition(": ")[0], line.partition(": ")[2]) for line in headers], [body], complete=True)


def written(answer: Answer) -> bytes:
    """An answer as ``response.http`` has it."""
    head = "".join(f"{name}: {value}\n" for name, value in answer.headers)
    return f"{answer.status}\n{head}\n".encode() + answer.body


def replay(name: str, body: bytes | None = None) -> Answer:
    """The answer of a case's own backend; ``body`` instead of the case's request."""

    async def ask() -> Answer:
        dialect, given = name.split("/")[0], sent(name) if body is None else body
        if name not in TOY:
            script: dict[str, Any] = json.loads((GOLDEN / name / "backend.json").read_text())
            guard = Guard() if script.pop("guarded", False) else None
            backend = scripted(script)
            try:
                return await acall(create_app(backend, ServerConfig(dialect=dialect), (MODEL,), guard, source=SOURCE), given)
            finally:
                await backend.close()
        async with toy_app(dialect) as app:
            return await acall(app, given)

    return asyncio.run(ask())


def scripted(script: dict[str, Any]) -> ScriptedBackend | SeeingBackend:
    """The backend of a ``backend.json``."""
    if "seeing" in script:
        return SeeingBackend({"idefics3": IDEFICS, "gemma3": GEMMA}[script["seeing"]])
    if "words" in script:
        script["words"] = [bytes(word) if isinstance(word, list) else word.encode() for word in script["words"]]
    if "state" in script:
        script["state"] = State(script["state"])
    return ScriptedBackend(**script)


def chunks(body: bytes) -> list[Any]:
    """The JSON of a stream's frames, less ``[DONE]``."""
    frames = [frame.removeprefix(b"data: ") for frame in body.split(b"\n\n") if frame]
    return [json.loads(frame) for frame in frames if frame != b"[DONE]"]


def choices(answer: Answer) -> list[Any]:
    """Every choice of a good answer, of a stream those of its chunks."""
    if answer.status != 200:
        return []
    bodies = [answer.json()] if (answer.header("content-type") or "") == "application/json" else chunks(answer.body)
    return [choice for one in bodies for choice in one.get("choices", ())]


def slices_right(name: str, answer: Answer) -> int:
    """How many offsets an answer has; checked: that every offset, and so ``text_offset`` as a whole, finds its token in the choice's text.

    A choice without the prompt in its text has offsets that start where the dialect counts from: at 0, or after the prompt.
    """
    texts: dict[int, str] = {}
    placed: dict[int, list[tuple[str, int]]] = {}
    for choice in choices(answer):
        index = choice["index"]
        if "text" not in choice:  # Cerebras' raw tokens
            continue
        texts[index] = texts.get(index, "") + choice["text"]
        placed.setdefault(index, []).extend(_placed(choice.get("logprobs")))
    for index, entries in placed.items():
        for token, offset in entries:
            start = offset - entries[0][1]
            # A control token that is not written out in the prompt has a name only, and takes no room in the text.
            there = texts[index].startswith(token, start) or re.fullmatch(r"<\|?[a-z_]+\|?>", token)
            assert there, f"{name}, choice {index}, offset {offset}"
    return sum(map(len, placed.values()))


def _placed(logprobs: Any) -> list[tuple[str, int]]:
    """Tokens and their offsets; Together has none, and its chunks a bare number."""
    if not isinstance(logprobs, dict):
        return []
    if "content" in logprobs:
        return [(entry["token"], entry["text_offset"]) for entry in logprobs["content"]]
    return list(zip(logprobs["tokens"], logprobs["text_offset"], strict=True)) if "text_offset" in logprobs else []
