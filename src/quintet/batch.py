"""Files that are kept and batches of requests, as values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

DAY = 86_400


class Purpose(enum.Enum):
    """What a file is for."""

    BATCH = "batch"  # the requests of batches
    OUTPUT = "batch_output"  # what came of one


class Status(enum.Enum):
    """Where a batch stands; each is entered at a time of its own."""

    VALIDATING = "validating"
    FAILED = "failed"  # its file is not a batch's; nothing was computed
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"  # all is computed, and the files are being written
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


def kept_s(most: float, asked: int | None) -> int:
    """Seconds for which a file is kept; 0 = for ever.

    Args:
        most: of any file; 0 = for ever.
        asked: of this one; 0 or ``None`` = nothing was asked for. Nobody may have the server keep for longer what it is to forget.
    """
    return min((int(seconds) for seconds in (most, asked) if seconds), default=0)


ENDED = frozenset({Status.FAILED, Status.COMPLETED, Status.EXPIRED, Status.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that is kept for somebody.

    Args:
        owner: the digest of the key that it belongs to, in hex; empty where no key is needed.
        size: bytes.
        created, expires: Unix times in seconds.
        lines: in it, counted by their ends.
    """

    id: str
    owner: str
    name: str
    purpose: Purpose
    size: int
    created: int
    expires: int | None
    lines: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a batch's file.

    Args:
        line: from 1; ``None`` = the file as a whole.
        param: the field at fault, if one is.
    """

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a batch's requests have used."""

    prompt: int = 0
    completion: int = 0
    reasoning: int = 0


NOTHING_USED = Tokens()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """A batch as it is asked for.

    Args:
        endpoint: path that all its requests are for.
        window: in which it is to be done, as the client wrote it.
        window_s: the same in seconds; ``None`` = it has no end.
        metadata: the client's own.
        output_s: seconds for which its output files are kept; ``None`` = as long as others.
        bare: its lines need neither a method nor a URL.
    """

    input_file: str
    endpoint: str
    window: str
    window_s: int | None
    metadata: Mapping[str, str] | None = None
    output_s: int | None = None
    bare: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch.

    Args:
        owner: see ``File``.
        dialect: name of that in which it was asked for, and its requests are written.
        asked: for what.
        created, expires: Unix times in seconds.
        entered: when it came to each status but the first, Unix times in seconds, by their values.
        output_file, error_file: their ids, once it has ended, if there is anything in them.
        total, completed, failed: lines.
        faults: why it failed.
        model: that all its requests name; empty = none, or several.
    """

    id: str
    owner: str
    dialect: str
    asked: NewBatch
    created: int
    expires: int | None
    status: Status = Status.VALIDATING
    entered: Mapping[str, int] = field(default_factory=dict)
    output_file: str | None = None
    error_file: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    faults: tuple[Fault, ...] = ()
    tokens: Tokens = NOTHING_USED
    model: str = ""
