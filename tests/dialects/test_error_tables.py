"""The error table of each dialect's page has whatever the dialect can answer a completion with, by status and code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.dialects.tables import DOCS

from quintet.dialects.base import Dialect
from quintet.dialects.catalog import PROVIDERS
from quintet.dialects.openapi import document
from quintet.errors import (
    BadRequest,
    BodyTooLarge,
    DeadlineExceeded,
    EngineFailed,
    Forbidden,
    HeadTooLarge,
    IdempotencyConflict,
    Loading,
    MethodNotAllowed,
    ModelNotAllowed,
    ModelNotFound,
    NotAuthorized,
    NotFound,
    OverLimit,
    Overloaded,
    PromptTooLong,
    QuintetError,
    RequestError,
    ServerError,
    SlowBody,
    TooManyRequests,
    UnsafePrompt,
    Unsatisfiable,
    Unsupported,
    UnsupportedMedia,
    WrongHost,
)
from quintet.quota import DAY, Meter, Unit

CODES = (
    "invalid_value",
    "invalid_type",
    "missing_required_parameter",
    "invalid_json",
    "too_many_values",
    "duplicate_key",
    "grammar_too_complex",
)
"""Of what is wrong with a body, in any dialect."""
ERRORS: tuple[Exception, ...] = (
    *(BadRequest("stop", "is wrong", code=code) for code in (*CODES, "unknown_parameter")),
    *(PromptTooLong("prompt", "is long"), PromptTooLong("prediction", "is long")),
    *(Unsupported("suffix", "is not there"), Unsatisfiable("It cannot be.")),
    *(NotAuthorized("no"), Forbidden("no"), ModelNotFound("no"), ModelNotAllowed("no"), NotFound("no"), WrongHost("no")),
    *(MethodNotAllowed("no"), BodyTooLarge("no"), UnsupportedMedia("no"), HeadTooLarge("no", 414), HeadTooLarge("no", 431)),
    *(SlowBody("no"), IdempotencyConflict("no", 422), IdempotencyConflict("no", 409), TooManyRequests("no")),
    *(Overloaded("no"), Loading("no"), DeadlineExceeded("no"), EngineFailed("no"), RuntimeError("not ours")),
    *(OverLimit(Meter(unit, window, 9, 0, 1.0), 1, 1.0) for unit, window in ((Unit.REQUESTS, DAY), (Unit.TOKENS, DAY), (Unit.TOKENS, 0.0))),
)
ONE = {
    "together": (UnsafePrompt("prompt", "judged unsafe"),),
    "cerebras": (BadRequest("", "The body is not valid gzip", code="invalid_body"),),
}
"""Of one dialect alone."""


def rows(dialect: str) -> list[tuple[set[int], set[str]]]:
    """Of the table: statuses, and codes, or reasons."""
    _, _, after = (DOCS / f"{dialect}.md").read_text(encoding="utf-8").partition("\n## Errors\n")
    table = [line.split("|")[1:] for line in after.partition("\n## ")[0].splitlines() if re.match(r"\| \d", line)]
    return [({int(one) for one in cells[0].split(",")}, set(re.findall("`([A-Za-z_]+)`", "".join(cells[1:-2])))) for cells in table]


def told(dialect: Dialect, error: Exception) -> tuple[int, str]:
    reply = dialect.error(error)
    body: dict[str, Any] = json.loads(reply.body)
    return reply.status, body["reason"] if "reason" in body else body.get("error", body)["code"]


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_answer_that_is_an_error_has_its_row(name: str) -> None:
    table, dialect = rows(name), PROVIDERS[name].dialect
    for error in (*ERRORS, *ONE.get(name, ())):
        status, code = told(dialect, error)
        assert any(status in statuses and code in codes for statuses, codes in table), (status, code, type(error).__name__)


@pytest.mark.parametrize("name", PROVIDERS)
def test_no_row_is_of_an_answer_that_there_is_not(name: str) -> None:
    dialect = PROVIDERS[name].dialect
    answers = {told(dialect, error) for error in (*ERRORS, *ONE.get(name, ()))}
    for statuses, codes in rows(name):
        assert statuses <= {status for status, _ in answers}
        assert codes - {"invalid_request_error", "invalid_body"} <= {code for status, code in answers if status in statuses} | types(name)


@pytest.mark.parametrize("name", PROVIDERS)
def test_the_openapi_document_has_the_statuses_of_the_table(name: str) -> None:
    answers = document(PROVIDERS[name])["paths"]["/completions"]["post"]["responses"]
    assert {status for statuses, _ in rows(name) for status in statuses} == {int(status) for status in answers} - {200}


def types(name: str) -> set[str]:
    """Cerebras' table has the types too."""
    if name != "cerebras":
        return set()
    return {json.loads(PROVIDERS[name].dialect.error(error).body)["type"] for error in ERRORS}


def test_no_kind_of_error_is_missing_here() -> None:
    def kinds(kind: type[Exception]) -> Iterator[type[Exception]]:
        yield kind
        for one in kind.__subclasses__():
            yield from kinds(one)

    ours = {kind for base in (RequestError, ServerError) for kind in kinds(base) if kind.__module__ == QuintetError.__module__}
    given = {type(error) for error in (*ERRORS, *(one for more in ONE.values() for one in more))}
    assert ours - given == {RequestError, ServerError}, "bases"
