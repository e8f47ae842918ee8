"""What a client thinks that the text will be, as SDKs send it. Whatever is predicted, the text is the same, sooner or later."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from quintet.dialects.fields import Prompts, wrong_type
from quintet.request import Prompt


@dataclass(frozen=True, slots=True)
class Predicted:
    """A text, or OpenAI's object around it or its parts: `{"type": "content", "content": string | array of text parts}`."""

    type: str = "string | object"
    range: str = '`{"type": "content", "content": ...}`'

    def read(self, name: str, value: object) -> str:
        if isinstance(value, str):
            return value
        if not isinstance(value, dict) or not _is(value, "content", {"content"}):
            raise wrong_type(name, 'a string, or {"type": "content", "content": ...} and nothing else', value)
        content = value.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        texts = [part["text"] if isinstance(part, dict) and _is(part, "text", {"text"}) else None for part in parts]
        if not all(isinstance(text, str) for text in texts):
            raise wrong_type(name, "a string, or have a string or text parts as its content", content)
        return "".join(map(str, texts))


def _is(value: Mapping[str, object], kind: str, members: Set[str]) -> bool:
    """An object of that ``type``, which may be left out, with those members and no other: what one would ask for is not done."""
    return value.get("type", kind) == kind and value.keys() - {"type"} == members


@dataclass(frozen=True, slots=True)
class Speculation:
    """A text, or token ids."""

    type: str = "string | array<integer>"
    range: str = ""

    def read(self, name: str, value: object) -> Prompt:
        if isinstance(value, list) and value and isinstance(value[0], str | list):
            raise wrong_type(name, "a string or an array of token ids", value)
        return Prompts(1).read(name, value)[0] if value != [] else ""
