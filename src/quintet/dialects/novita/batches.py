"""Novita's files and batches. Pages: https://novita.ai/docs/api-reference/model-apis-llm-create-batch and its neighbours, quoted as "page"
below; "guide" is https://novita.ai/docs/guides/llm-batch-api. Its users have OpenAI's SDK."""

from __future__ import annotations

from typing import Any

from quintet.batch import DAY, Batch, File, NewBatch, Status
from quintet.dialects.batches import ENDPOINT, INPUT_FILE, METADATA, Batches, RequestCounts, metadata_of
from quintet.dialects.fields import Field, OneOf, unknown
from quintet.dialects.json_guard import decode_object

# Page, completion_window: "The completion window is fixed at `48h` and is currently non-adjustable."
WINDOW = Field("completion_window", OneOf(("48h",)), "48h")
FIELDS: tuple[Field[Any], ...] = (INPUT_FILE, ENDPOINT, WINDOW, METADATA)

# Page, status: "VALIDATING", "PROGRESS", "COMPLETED", "FAILED", "EXPIRED", "CANCELLING", "CANCELLED". It has no word for the time between
# the last answer and the files, in which they are still being worked on.
_STATUS = {status: status.name for status in Status} | {Status.IN_PROGRESS: "PROGRESS", Status.FINALIZING: "PROGRESS"}


class NovitaBatches(Batches):
    """See ``Batches``. The files are OpenAI's, with one member more."""

    fields = FIELDS

    def create(self, body: bytes) -> tuple[NewBatch, tuple[str, ...]]:
        raw = decode_object(body)
        metadata = metadata_of(METADATA.of(raw)) if raw.get(METADATA.name) is not None else None
        asked = NewBatch(
            input_file=INPUT_FILE.required(raw),
            endpoint=ENDPOINT.required(raw),
            window=WINDOW.of(raw),
            window_s=2 * DAY,
            metadata=metadata,
            bare=True,  # Guide: the lines of its files have a custom_id and a body, and nothing else.
        )
        return asked, unknown(FIELDS, raw)

    def _file(self, file: File) -> object:
        """Page: ``metadata`` has ``total_requests``."""
        about = {"id": file.id, "object": "file", "bytes": file.size, "created_at": file.created, "filename": file.name}
        return {**about, "purpose": file.purpose.value, "metadata": {"total_requests": file.lines}}

    def _batch(self, batch: Batch) -> object:
        """Page: times are strings, or null; ids of files are "Empty until the batch is completed"; ``errors`` is a string."""
        times = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.asked.endpoint,
            "input_file_id": batch.asked.input_file,
            "output_file_id": batch.output_file or "",
            "error_file_id": batch.error_file or "",
            "completion_window": batch.asked.window,
            **{f"{name}_at": stamp(batch.entered.get(name)) for name in times},
            "expires_at": stamp(batch.expires),
            "status": _STATUS[batch.status],
            "errors": "; ".join(f"line {one.line}: {one.message}" if one.line else one.message for one in batch.faults),
            "version": len(batch.entered),
            "created_at": stamp(batch.created),
            "updated_at": stamp(max(batch.entered.values(), default=batch.created)),
            "created_by": "",
            "created_by_key_id": batch.owner[:8],
            "remark": "",
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
            "metadata": batch.asked.metadata,
            "request_counts": RequestCounts.of(batch),
        }


def stamp(time: int | None) -> str | None:
    """A Unix time as RFC 3339 has it. With ``datetime`` a dialect would have the clock too, so this is the calendar's own arithmetic
    (https://howardhinnant.github.io/date_algorithms.html)."""
    if time is None:
        return None
    days, seconds = divmod(time, DAY)
    era, of_era = divmod(days + 719_468, 146_097)  # days from 0000-03-01, in cycles of 400 years
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * of_year + 2) // 153  # months from March
    day, month = of_year - (153 * shifted + 2) // 5 + 1, shifted + 3 if shifted < 10 else shifted - 9
    year = era * 400 + year_of_era + (month <= 2)
    return f"{year:04}-{month:02}-{day:02}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"
