"""OpenAI's files and batches. Pages: https://platform.openai.com/docs/api-reference/files and .../batch, quoted as "page" below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quintet.batch import DAY, Batch, File, NewBatch, Status
from quintet.dialects.batches import (
    ENDPOINT,
    INPUT_FILE,
    METADATA,
    OUTPUT_EXPIRES,
    Batches,
    RequestCounts,
    expiry,
    expiry_fields,
    metadata_of,
)
from quintet.dialects.fields import REQUIRED, Field, OneOf, unknown
from quintet.dialects.json_guard import decode_object

# Page, completion_window: "Currently only `24h` is supported."
WINDOW = Field("completion_window", OneOf(("24h",)), "", shown=REQUIRED)
FIELDS: tuple[Field[Any], ...] = (INPUT_FILE, ENDPOINT, WINDOW, METADATA, OUTPUT_EXPIRES)


class FileObject(msgspec.Struct):
    """Page, status: "Deprecated. The current status of the file, which can be either `uploaded`, `processed`, or `error`." """

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None
    object: str = "file"
    status: str = "processed"
    status_details: str | None = None

    @classmethod
    def of(cls, file: File) -> FileObject:
        return cls(file.id, file.size, file.created, file.name, file.purpose.value, file.expires)


class _Errors(msgspec.Struct):
    """Page, errors: ``object`` is "always `list`"."""

    data: Sequence[Mapping[str, object]]
    object: str = "list"


class OpenAIBatches(Batches):
    """See ``Batches``."""

    fields = FIELDS

    def create(self, body: bytes) -> tuple[NewBatch, tuple[str, ...]]:
        raw = decode_object(body)
        file, endpoint, window = INPUT_FILE.required(raw), ENDPOINT.required(raw), WINDOW.required(raw)
        metadata = metadata_of(METADATA.of(raw)) if raw.get(METADATA.name) is not None else None
        output = expiry(OUTPUT_EXPIRES.name, OUTPUT_EXPIRES.of(raw)) if raw.get(OUTPUT_EXPIRES.name) is not None else None
        members: tuple[Field[Any], ...] = expiry_fields(OUTPUT_EXPIRES.name)
        ignored = unknown((*FIELDS, *members), raw)
        return NewBatch(input_file=file, endpoint=endpoint, window=window, window_s=DAY, metadata=metadata, output_s=output), ignored

    def _file(self, file: File) -> object:
        return FileObject.of(file)

    def _batch(self, batch: Batch) -> object:
        faults = [{"code": one.code, "message": one.message, "param": one.param, "line": one.line} for one in batch.faults]
        tokens = batch.tokens
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.asked.endpoint,
            "model": batch.model or None,
            "errors": _Errors(faults) if faults else None,
            "input_file_id": batch.asked.input_file,
            "completion_window": batch.asked.window,
            "status": batch.status.value,
            "output_file_id": batch.output_file,
            "error_file_id": batch.error_file,
            "created_at": batch.created,
            **{f"{status.value}_at": batch.entered.get(status.value) for status in Status if status is not Status.VALIDATING},
            "expires_at": batch.expires,
            "request_counts": RequestCounts.of(batch),
            # What came out of the cache is not told: it depends on what else ran.
            "usage": {
                "input_tokens": tokens.prompt,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": tokens.completion,
                "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
                "total_tokens": tokens.prompt + tokens.completion,
            },
            "metadata": batch.asked.metadata,
        }
