"""A batch's file, read line by line before anything of it is computed."""

from __future__ import annotations

import secrets
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from quintet.batch import Fault, NewBatch
from quintet.batches.lines import Line
from quintet.errors import counted, shorten
from quintet.request import FRESH_SEED_BITS

MOST_FAULTS = 100
"""Of a file more are not told."""

MOST_NAME = 512
"""Characters of a ``custom_id``."""

_LINES_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """What a batch's file may be.

    Args:
        lines: most of them; as many may be blank, beside.
        line_bytes: most of one of them, without its end.
        one_model: all of them must name the same, as the pages have it.
    """

    lines: int = 50_000
    line_bytes: int = 12 * 1024 * 1024
    one_model: bool = True


def draw_seed(_line: int) -> int:
    """A seed for a request without one."""
    return secrets.randbits(FRESH_SEED_BITS)


class _Body(msgspec.Struct):
    model: str | None = None


class _Request(msgspec.Struct, forbid_unknown_fields=True):  # what means nothing here is not dropped in silence
    custom_id: str
    body: _Body
    method: str | None = None
    url: str | None = None


_DECODER = msgspec.json.Decoder(_Request)


@dataclass(slots=True)
class Contents:
    """What a batch's file holds, as far as it was read.

    Args:
        models: that its requests name; one of them is empty where a request names none.
        names: ``custom_id`` of each line.
    """

    lines: list[Line] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    @property
    def model(self) -> str:
        """That all requests name; empty = none, or several."""
        return next(iter(self.models)) if len(self.models) == 1 else ""


def validate(path: Path, asked: NewBatch, limits: Limits, seed: Callable[[int], int]) -> Iterator[Contents]:
    """Read a file; what it holds so far comes again and again, so that whoever reads lets others have the interpreter in between."""
    contents = Contents()
    number = blank = 0
    with path.open("rb") as file:
        start = file.seek(len(BOM_UTF8) if file.read(len(BOM_UTF8)) == BOM_UTF8 else 0)  # editors on Windows begin a file with it
        while data := file.readline(limits.line_bytes + len(b"\r\n")):
            number += 1
            blank += not data.strip()
            if max(blank, number - blank) > limits.lines:
                contents.faults.append(Fault("too_many_tasks", f"The file has more than {counted(limits.lines, 'line')}.", number))
                break
            if len(data.removesuffix(b"\n").removesuffix(b"\r")) > limits.line_bytes:
                contents.faults.append(Fault("line_too_long", f"The line has more than {limits.line_bytes} bytes.", number))
                break
            if data.strip():
                fault = _take(contents, Line(number, start, len(data), "", seed(number)), data, asked, limits)
                if fault is not None:
                    contents.faults.append(fault)
            start += len(data)
            if len(contents.faults) >= MOST_FAULTS:
                break
            if number % _LINES_AT_ONCE == 0:
                yield contents
    if not contents.lines and not contents.faults:
        contents.faults.append(Fault("empty_file", "The input file is empty. Please ensure that the batch contains at least one request."))
    yield contents


def body_of(data: bytes, name: str) -> bytes | None:
    """The request's body as JSON text, of a line without a fault; ``None`` = it is the line of that ``custom_id`` no more."""
    try:
        whole = msgspec.json.decode(data, type=_Whole)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return bytes(whole.body) if whole.custom_id == name else None


class _Whole(msgspec.Struct):
    custom_id: str
    body: msgspec.Raw


class _Name:
    """Of a member; no two are equal, so a decoder shows them all."""


class _RepeatedError(Exception):
    """A member's name comes again."""


def _repeated(data: bytes) -> str | None:
    """A member of a request that is given more than once: readers disagree on which of the two counts, so neither does."""
    seen: set[str] = set()

    def note(_: type, name: str) -> _Name:
        if name in seen:
            raise _RepeatedError(name)
        seen.add(name)
        return _Name()

    try:
        msgspec.json.decode(data, type=dict[_Name, msgspec.Raw], dec_hook=note)
    except _RepeatedError as error:
        return str(error)
    return None


def _malformed(error: Exception) -> str:
    """Why a line is no JSON."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    said = str(error).removeprefix("JSON is malformed: ")
    return "it ends too soon, or has half of a surrogate pair" if "truncated" in said else said  # msgspec's word for both


def _take(contents: Contents, line: Line, data: bytes, asked: NewBatch, limits: Limits) -> Fault | None:
    """Add a line to the contents, with its name; or why that cannot be."""
    number = line.number
    try:
        request = _DECODER.decode(data)
    except msgspec.ValidationError as error:
        return Fault("invalid_request", f"The line is no request: {shorten(str(error), 120)[1:-1]}.", number)  # it names what was sent
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Fault("invalid_json_line", f"This line is not parseable as valid JSON: {_malformed(error)}.", number)
    if (name := _repeated(data)) is not None:
        return Fault("duplicate_key", f"The member {name} is given more than once.", number, name)
    if not 0 < len(request.custom_id) <= MOST_NAME:
        return Fault("invalid_custom_id", f"The custom_id must have 1 to {MOST_NAME} characters.", number, "custom_id")
    if request.custom_id in contents.names:
        message = f"The custom_id {shorten(request.custom_id)} appears more than once; each must be unique in its file."
        return Fault("duplicate_custom_id", message, number, "custom_id")
    if request.method != "POST" and not (asked.bare and request.method is None):
        return Fault("invalid_method", f"The method must be POST, got {shorten(request.method)}.", number, "method")
    if request.url != asked.endpoint and not (asked.bare and request.url is None):
        message = f"The URL provided for this request does not match the batch endpoint {asked.endpoint}: {shorten(request.url)}."
        return Fault("mismatched_url", message, number, "url")
    model = request.body.model or ""
    if limits.one_model and contents.models and model not in contents.models:
        got = f"The model {shorten(model)}" if model else "No model"
        message = f"{got} is not that of the lines before it: a batch's requests must all name one model, or none."
        return Fault("model_mismatch", message, number, "body.model")
    contents.names.add(request.custom_id)
    contents.models.add(model)
    contents.lines.append(replace(line, name=request.custom_id))
    return None
