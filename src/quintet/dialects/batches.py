"""What a dialect that has files and batches says of them: pure functions from what is asked to values, and from these to JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quintet.batch import Batch, File, NewBatch
from quintet.dialects.fields import REQUIRED, Field, Integer, Object, OneOf, String
from quintet.dialects.wire import encode
from quintet.errors import BadRequest, shorten

MOST_FILES, MOST_BATCHES = 10_000, 100
"""Of a page. OpenAI's pages: "Limit can range between 1 and 10,000, and the default is 10,000"; "between 1 and 100, and the default is
20"."""

_FEW_BATCHES = 20
_LEAST_S, _MOST_S = 3600, 2_592_000  # page, seconds: "Must be between 3600 (1 hour) and 2592000 (30 days)."

_UPLOADED_FOR = "batch"

ANCHOR, SECONDS = "anchor", "seconds"
"""Members of what says when something expires."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list.

    Args:
        after: id of the last one before it; empty = it is the first.
        purpose: of the files in it; empty = any.
    """

    after: str
    limit: int
    ascending: bool = False
    purpose: str = ""


class Batches(ABC):
    """A provider's files and batches: OpenAI's, but for the fields of a batch and what is told of it and of a file.

    Pages: https://platform.openai.com/docs/api-reference/files and .../batch, quoted as "page" below.

    Args:
        fields: of a batch that is asked for.
    """

    fields: Sequence[Field[Any]]

    @abstractmethod
    def create(self, body: bytes) -> tuple[NewBatch, tuple[str, ...]]:
        """A batch that is asked for, and fields that are not the provider's.

        Raises:
            BadRequest: and nothing else, whatever the bytes.
        """

    @abstractmethod
    def _file(self, file: File) -> object:
        """What is told of a file."""

    @abstractmethod
    def _batch(self, batch: Batch) -> object:
        """What is told of a batch."""

    def purpose(self, given: str) -> None:
        """Page, purpose: one of several, of which only this one is of any use here.

        Raises:
            BadRequest: not one that files may be uploaded for.
        """
        if given != _UPLOADED_FOR:
            raise BadRequest("purpose", f"must be {_UPLOADED_FOR}: nothing here reads files for anything else", shorten(given))

    def file(self, file: File) -> bytes:
        return encode(self._file(file))

    def files(self, files: Sequence[File], more: bool) -> bytes:
        return _listed([self._file(file) for file in files], [file.id for file in files], more)

    def deleted(self, id_: str) -> bytes:
        return encode({"id": id_, "object": "file", "deleted": True})

    def batch(self, batch: Batch) -> bytes:
        return encode(self._batch(batch))

    def batches(self, batches: Sequence[Batch], more: bool) -> bytes:
        return _listed([self._batch(batch) for batch in batches], [batch.id for batch in batches], more)


class RequestCounts(msgspec.Struct):
    """Page, request_counts."""

    total: int
    completed: int
    failed: int

    @classmethod
    def of(cls, batch: Batch) -> RequestCounts:
        return cls(batch.total, batch.completed, batch.failed)


def _listed(entries: Sequence[object], ids: Sequence[str], more: bool) -> bytes:
    """A page of a list."""
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return encode({"object": "list", "data": entries, "first_id": first, "last_id": last, "has_more": more})


def files_page(after: str, limit: str, order: str, purpose: str) -> Page:
    """Of the parameters of a list of files, empty where they are not there.

    Raises:
        BadRequest: one is out of range.
    """
    if order not in ("", "asc", "desc"):
        raise BadRequest("order", "must be asc or desc", shorten(order))
    return Page(after, _limit(limit, MOST_FILES, MOST_FILES), order == "asc", purpose)


def batches_page(after: str, limit: str) -> Page:
    """Likewise of a list of batches."""
    return Page(after, _limit(limit, MOST_BATCHES, _FEW_BATCHES))


def expiry(name: str, given: Mapping[str, object]) -> int:
    """Seconds of an object such as ``{"anchor": "created_at", "seconds": 3600}``.

    Raises:
        BadRequest: none such.
    """
    anchor, seconds = expiry_fields(name)
    anchor.required(given)
    return seconds.required(given)


def expiry_fields(name: str) -> tuple[Field[str], Field[int]]:
    """Those of such an object."""
    return Field(f"{name}.{ANCHOR}", OneOf(("created_at",)), ""), Field(f"{name}.{SECONDS}", Integer(_LEAST_S, _MOST_S), 0)


def metadata_of(given: Mapping[str, object]) -> dict[str, str]:
    """OpenAI's page: "Set of 16 key-value pairs"; "Keys are strings with a maximum length of 64 characters. Values are strings with a
    maximum length of 512 characters."

    Raises:
        BadRequest: one is broken.
    """
    if len(given) > 16:
        raise BadRequest("metadata", "must have at most 16 members", str(len(given)))
    for key, value in given.items():
        if len(key) > 64:
            raise BadRequest("metadata", "must have keys of at most 64 characters", shorten(key))
        if not isinstance(value, str) or len(value) > 512:
            raise BadRequest("metadata", f"must have strings of at most 512 characters for values; {shorten(key)} is none", shorten(value))
    return {key: str(value) for key, value in given.items()}


def _limit(given: str, most: int, default: int) -> int:
    if not given:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= most):
        raise BadRequest("limit", f"must be a whole number from 1 to {most}", shorten(given))
    return int(given)


INPUT_FILE = Field("input_file_id", String(256), "", shown=REQUIRED)
# Page, endpoint: "Currently `/v1/responses`, `/v1/chat/completions`, ... `/v1/completions` ... are supported." Here there are completions.
ENDPOINT = Field("endpoint", OneOf(("/v1/completions",)), "", shown=REQUIRED)
METADATA: Field[dict[str, object]] = Field("metadata", Object(), {})
OUTPUT_EXPIRES: Field[dict[str, object]] = Field("output_expires_after", Object(), {})
