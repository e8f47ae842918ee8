"""What Mistral's fill-in-the-middle route writes: chat completions' shape, whose message is the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from quintet.dialects.base import ErrorReply, Fault, Headers, Identity, broken, fault
from quintet.dialects.wire import Counts, encode
from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finish, Finished, Usage

# Page, finish_reason: "Enum: stop, length, model_length, error, tool_calls".
_FINISH = {Finish.EOS: "stop", Finish.STOP: "stop", Finish.LENGTH: "length"}


class FimRenderer:
    """See ``Renderer``. A stream's last chunk has the finish reason and the usage.

    Args:
        bounded: the request has a ``max_tokens``.
    """

    def __init__(self, identity: Identity, *, bounded: bool) -> None:
        self._identity = identity
        # The service says so where the context ends a text and no limit of the request: prompt and completion are then as long as it is.
        self._reasons = _FINISH if bounded else {**_FINISH, Finish.LENGTH: "model_length"}
        self._texts: list[str] = []
        self._finish = "error"
        self._usage: Usage | None = None

    def feed(self, event: Event) -> list[bytes]:
        match event:
            case ChoiceDelta(text=text):
                return [encode(self._chunk({"role": "assistant", "content": text}, None))]
            case ChoiceDone(finish=finish):
                self._finish = self._reasons.get(finish, "error")
            case Finished(usage):
                return [encode(self._chunk({"content": ""}, self._finish) | {"usage": Counts.of(usage)})]
            case Failed():
                return [encode(_fault_body(broken(event)))]
        return []

    def weight(self, _event: Event) -> float:
        return 0

    def late(self) -> None:
        pass

    def add(self, event: Event) -> None:
        match event:
            case ChoiceDelta(text=text):
                self._texts.append(text)
            case ChoiceDone(finish=finish):
                self._finish = self._reasons.get(finish, "error")
            case Finished(usage):
                self._usage = usage
            case Failed(message):
                raise ValueError(f"a failed request has no body: {message}")

    def body(self) -> Iterator[bytes]:
        if self._usage is None:
            raise ValueError("the events do not end with Finished")
        message = {"role": "assistant", "content": "".join(self._texts), "tool_calls": None}
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        yield encode({**self._head("chat.completion"), "choices": [choice], "usage": Counts.of(self._usage)})

    def headers(self, _events: Sequence[Event]) -> Headers:
        return ()

    def _chunk(self, delta: dict[str, str], finish: str | None) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk"), "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    def _head(self, kind: str) -> dict[str, Any]:
        about = self._identity
        return {"id": about.id, "object": kind, "created": about.created, "model": about.model}


def _fault_body(known: Fault) -> dict[str, Any]:
    return {"object": "error", "message": known.message, "type": known.type, "param": known.param, "code": known.code}


def error(failure: Exception) -> ErrorReply:
    """As Mistral's service writes it: ``{"object": "error", "message", "type", "param", "code"}``."""
    known = fault(failure)
    return ErrorReply(known.status, known.headers, encode(_fault_body(known)))
