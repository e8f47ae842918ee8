"""What the fields of ``/infill`` are read as. See ``fields.Kind``."""

from __future__ import annotations

from dataclasses import dataclass

from quintet.dialects.fields import Object, String
from quintet.errors import BadRequest, printable


@dataclass(frozen=True, slots=True)
class Chunk:
    """Text of another place.

    Args:
        heading: its file's name, and a line break.
        unknown: names of further members.
    """

    heading: str
    text: str
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chunks:
    """A chunk: an object of ``text`` and, if known, ``filename``."""

    type: str = "object"
    range: str = ""

    def read(self, name: str, value: object) -> Chunk:
        members = Object().read(name, value)
        if members.get("text") is None:
            raise BadRequest(f"{name}.text", "is required", code="missing_required_parameter")
        text = String().read(f"{name}.text", members["text"])
        # Source, format_prompt_infill: the name is "tmp" where there is none.
        file = String(4096).read(f"{name}.filename", "tmp" if members.get("filename") is None else members["filename"])
        return Chunk(f"{file}\n", text, tuple(printable(key) for key in members if key not in ("text", "filename")))
