"""A line of a batch's file, before it is computed and after."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from quintet.batch import NOTHING_USED, Tokens


@dataclass(frozen=True, slots=True)
class Line:
    """Where a request is in its file, and what was drawn for it.

    Args:
        number: from 1.
        start, size: bytes of the file.
        name: the client's ``custom_id``.
        seed: for a request that has none.
    """

    number: int
    start: int
    size: int
    name: str
    seed: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request.

    Args:
        status: HTTP status.
        body: JSON text.
        warnings: what a client who asks for it alone is told in ``warning`` headers: fields without an effect.
    """

    status: int
    body: bytes
    tokens: Tokens = NOTHING_USED
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """It is what was asked for."""
        return self.status == 200


def token_of(batch: str, line: int) -> str:
    """What a line's ids are made of: the same whenever it is computed."""
    return hashlib.sha256(f"{batch}/{line}".encode()).hexdigest()[:32]


def answered_line(batch: str, line: Line, answer: Answer) -> bytes:
    """The line of an output or error file for a request that was computed, with its end."""
    token = token_of(batch, line.number)
    response = f'{{"status_code":{answer.status},"request_id":"req-{token}","body":'.encode()
    warnings = f',"warnings":{json.dumps(answer.warnings)}'.encode() if answer.warnings else b""
    return b'%b"response":%b%b%b},"error":null}\n' % (_head(token, line), response, answer.body.strip(), warnings)


def undone_line(batch: str, line: Line, code: str, message: str) -> bytes:
    """The line of an error file for a request that was not computed, with its end."""
    error = json.dumps({"code": code, "message": message}, separators=(",", ":")).encode()
    return b'%b"response":null,"error":%b}\n' % (_head(token_of(batch, line.number), line), error)


def _head(token: str, line: Line) -> bytes:
    return f'{{"id":"batch_req_{token}","custom_id":{json.dumps(line.name)},'.encode()
