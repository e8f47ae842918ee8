"""One row of the ledger for each completion that was admitted, with what was used and how it ended; none for any other request."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.backends.contract.conftest import ready
from tests.ledger.files import rows_in
from tests.server.asgi import JSON, Answer, acall
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend
from tests.server.test_infill_route import FimTokenizer

from quintet.backends.native.core.loader import Loaded
from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import EOS, ToyRunner, ToyTokenizer
from quintet.config import EngineConfig, LedgerConfig, ServerConfig
from quintet.errors import Overloaded, TooManyRequests
from quintet.ledger.ledger import Ledger
from quintet.ledger.rows import Row, State
from quintet.ledger.store import Store
from quintet.server.asgi import ASGIApp
from quintet.server.source import Source

PATIENCE_S = 60
TOY = EngineConfig(kv_bytes=1 << 22, speculation=False)
LONG = {"prompt": "abcd", "max_tokens": 4000, "logit_bias": {str(EOS): -100}}


@dataclass
class Kept:
    """An application with a ledger."""

    app: ASGIApp
    file: Path
    engine: Any

    async def rows(self, count: int) -> list[Row]:
        """All rows, once so many are closed."""
        async with asyncio.timeout(PATIENCE_S):
            while len(found := [row for row in rows_in(self.file).values() if row]) != count or any(
                row.state is State.OPEN for row in found
            ):
                await asyncio.sleep(0.005)
        return found

    async def metrics(self) -> dict[str, float]:
        page = await acall(self.app, method="GET", path="/metrics")
        families = text_string_to_metric_families(page.body.decode())
        return {sample.name: sample.value for family in families for sample in family.samples if sample.name.startswith("quintet:ledger")}


def run(
    file: Path,
    scenario: Callable[[Kept], Awaitable[None]],
    backend: Any = None,
    *,
    serve: bool = False,
    engine: EngineConfig = TOY,
    tokenizer: ToyTokenizer | None = None,
    **config: Any,
) -> list[Row]:
    """All rows of the file at the end."""

    @asynccontextmanager
    async def kept() -> AsyncIterator[Kept]:
        ids = itertools.count()
        source = Source(token=lambda: f"id{next(ids)}")
        async with ready(
            backend or Engine(lambda _: Loaded(ToyRunner(), tokenizer or ToyTokenizer(), name="toy", fingerprint="f"), engine)
        ) as made:
            ledger = Ledger(LedgerConfig(file, serve))
            try:
                yield Kept(create_app(made, ServerConfig(**config), ("m", "alias"), source=source, ledger=ledger), file, made)
            finally:
                ledger.close()

    async def whole() -> None:
        async with kept() as one:
            await scenario(one)

    asyncio.run(whole())
    return [row for row in rows_in(file).values() if row]


@pytest.mark.parametrize(
    ("path", "body", "prompt", "completion", "n"),
    [
        ("/v1/completions", {"max_tokens": 3}, 4, 3, 1),
        ("/v1/completions", {"max_tokens": 3, "n": 2, "stream": True}, 4, 6, 2),
        ("/v1/completions", {"max_tokens": 0, "echo": True, "logprobs": 1}, 4, 0, 1),
        ("/v1/completions", {"max_tokens": 3, "best_of": 4, "n": 2}, 4, 12, 2),
        ("/v1/completions", {"max_tokens": 2, "prompt": ["ab", "abc"]}, 5, 4, 1),
        ("/together/v1/completions", {"max_tokens": 3, "stream": True}, 4, 3, 1),
        ("/fireworks/inference/v1/completions", {"max_tokens": 3}, 4, 3, 1),
        ("/cerebras/v1/completions", {"max_tokens": 3}, 4, 3, 1),
        ("/novita/openai/v1/completions", {"max_tokens": 3}, 4, 3, 1),
    ],
)
def test_each_kind_of_completion_has_a_row_with_the_usage_that_its_client_was_told(
    tmp_path: Path, path: str, body: dict[str, object], prompt: int, completion: int, n: int
) -> None:
    async def scenario(one: Kept) -> None:
        answer = await acall(one.app, {"model": "alias", "prompt": "abcd", "logit_bias": {str(EOS): -100}, "seed": 1, **body}, path=path)
        assert answer.status == 200
        (row,) = await one.rows(1)
        if not body.get("stream"):
            told = answer.json()["usage"]
            assert (told["prompt_tokens"], told["completion_tokens"]) == (row.prompt, row.completion)
        assert row.id in answer.body.decode()

    (row,) = run(tmp_path / "ledger.db", scenario)
    dialect = path.split("/")[1]
    expected = (prompt, completion, n, "m", "openai" if dialect == "v1" else dialect, State.COMPLETED, "length", 200)
    assert (row.prompt, row.completion, row.n, row.model, row.dialect, row.state, row.finish, row.status) == expected
    assert row.total is not None
    assert row.first is None or 0 <= row.first <= row.total


def test_what_is_filled_in_has_a_row_with_the_usage_that_the_editor_was_told(tmp_path: Path) -> None:
    body = {"input_prefix": "def f(\n", "input_suffix": "\n", "prompt": "    a", "n_predict": 5, "logit_bias": [[EOS, -100]], "seed": 1}

    async def scenario(one: Kept) -> None:
        whole, stream = await acall(one.app, body, path="/infill"), await acall(one.app, {**body, "stream": True}, path="/infill")
        assert (whole.status, stream.status) == (200, 200)
        told = whole.json()
        first, second = sorted(await one.rows(2))
        assert (first.prompt, first.completion) == (told["tokens_evaluated"], told["tokens_predicted"])
        assert (second.prompt, second.completion) == (first.prompt, 5)

    rows = run(tmp_path / "ledger.db", scenario, tokenizer=FimTokenizer())
    assert [(row.model, row.n, row.state, row.finish, row.status) for row in rows] == [("m", 1, State.COMPLETED, "length", 200)] * 2


def test_what_is_refused_has_no_row(tmp_path: Path) -> None:
    async def scenario(one: Kept) -> None:
        asked: list[tuple[dict[str, Any], str, str]] = [
            ({"max_tokens": -1}, "/v1/completions", "k"),
            ({"model": "unknown"}, "/v1/completions", "k"),
            ({"prompt": "x" * 9000}, "/v1/completions", "k"),
            ({}, "/v1/completions", "wrong"),
            ({"suffix": "x"}, "/v1/completions", "k"),
            ({"input_prefix": "x"}, "/infill", "k"),
            ({}, "/nowhere", "k"),
        ]
        for body, path, key in asked:
            headers = [*JSON, ("authorization", f"Bearer {key}")]
            assert (await acall(one.app, {"prompt": "abcd", **body}, path=path, headers=headers)).status >= 400

    assert run(tmp_path / "ledger.db", scenario, api_keys=("k",)) == []


@pytest.mark.fault("E06")
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_cancelled_with_the_tokens_that_were_computed(tmp_path: Path, stream: bool) -> None:
    backend = ScriptedBackend(length=None, context=10_000_000, pause=0.001)

    async def scenario(one: Kept) -> None:
        gone = asyncio.Event()
        asking = asyncio.create_task(acall(one.app, {"prompt": "abcd", "max_tokens": 1_000_000, "stream": stream}, gone=gone))
        while backend.steps < 20:
            await asyncio.sleep(0.01)
        gone.set()
        await asking
        await one.rows(1)

    (row,) = run(tmp_path / "ledger.db", scenario, backend)
    assert (row.state, row.finish, row.status) == (State.CANCELLED, "abort", 200 if stream else 499)
    assert row.prompt == 4
    assert row.completion > 0
    assert backend.steps - row.completion in (0, 1), "one may have been on its way"


@pytest.mark.fault("E06", "H08")
def test_of_a_stream_that_its_client_leaves_unread_all_that_was_computed_counts(tmp_path: Path) -> None:
    """What waits for the client in the front, and was not looked at yet, was computed too."""

    async def scenario(one: Kept) -> None:
        gone = asyncio.Event()
        asking = asyncio.create_task(acall(one.app, {**LONG, "stream": True}, gone=gone, stuck_at=2))
        while one.engine.health().counts.tokens < 300:
            await asyncio.sleep(0.001)
        gone.set()
        await asking
        (row,) = await one.rows(1)
        assert (row.state, row.status) == (State.CANCELLED, 200)
        counts = one.engine.health().counts
        assert 0 <= counts.tokens - counts.prefilled - row.completion <= 1, "one step may have been on its way"

    run(tmp_path / "ledger.db", scenario)


@pytest.mark.fault("E06", "H08")
@pytest.mark.parametrize("stream", [False, True])
def test_of_a_prompt_that_is_given_up_what_was_computed_counts_and_one_that_waits_costs_nothing(tmp_path: Path, stream: bool) -> None:
    """Clients leave at random moments of long prompts; the recount is the engine's own."""
    chunk, rng = 16, random.Random(6)

    async def scenario(one: Kept) -> None:
        blocking = asyncio.create_task(acall(one.app, {**LONG, "max_tokens": 300}))
        await asyncio.sleep(0.01)
        await acall(one.app, {**LONG, "prompt": "waits", "stream": stream}, leave_after=0.01)
        await blocking
        waited = next(row for row in await one.rows(2) if row.state is State.CANCELLED)
        assert (waited.prompt, waited.completion) == (0, 0)
        for number in range(12):
            before = one.engine.health().counts.prefilled
            body = {"prompt": chr(65 + number) * 3500, "max_tokens": 3, "stream": stream}
            await acall(one.app, body, leave_after=rng.choice((0.001, 0.01, 0.03, 0.1, PATIENCE_S)))
            row = (await one.rows(number + 3))[-1]
            assert 0 <= one.engine.health().counts.prefilled - before - row.prompt <= chunk, "one step may have been on its way"
            assert row.prompt == 3500 or row.state is State.CANCELLED

    run(tmp_path / "ledger.db", scenario, engine=replace(TOY, batch_tokens=chunk, max_running=1))


@pytest.mark.fault("E07")
def test_a_client_that_closes_right_after_the_last_chunk_has_completed(tmp_path: Path) -> None:
    """Its end is noticed before the handler has returned."""
    backend = ScriptedBackend()

    async def scenario(one: Kept) -> None:
        answer = await acall(one.app, {"prompt": "abcd", "max_tokens": 3, "stream": True})
        assert answer.body.endswith(b"data: [DONE]\n\n")
        await one.rows(1)

    (row,) = run(tmp_path / "ledger.db", scenario, backend)
    assert (row.state, row.completion, row.status, backend.aborted) == (State.COMPLETED, 3, 200, [])


def test_what_fails_on_the_way_is_told_with_the_status_that_its_client_got(tmp_path: Path) -> None:
    async def scenario(one: Kept) -> None:
        for stream in (False, True):
            await acall(one.app, {"prompt": "abcd", "max_tokens": 9, "stream": stream}, path="/together/v1/completions")

    found = run(tmp_path / "ledger.db", scenario, ScriptedBackend(break_after=2))
    assert [(row.state, row.finish, row.status) for row in found] == [(State.FAILED, "error", 500), (State.FAILED, "error", 200)]

    found = run(tmp_path / "first.db", scenario, ScriptedBackend(break_after=0))
    assert [(row.state, row.finish, row.status) for row in found] == [(State.FAILED, "error", 500)] * 2

    async def late(one: Kept) -> None:
        answer = await acall(one.app, LONG)
        assert answer.status == 504

    found = run(tmp_path / "late.db", late, timeout=0.05)
    assert [(row.state, row.finish, row.status) for row in found] == [(State.FAILED, "abort", 504)]


def test_a_request_for_which_there_is_no_room_any_more_once_its_row_is_written_is_refused_and_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = ScriptedBackend()
    written: list[int] = []
    write = Store.write

    def slow(store: Store, rows: dict[int, Row | None]) -> None:
        written.extend(rows)
        write(store, rows)

    monkeypatch.setattr(Store, "write", slow)

    def room(count: int, tenant: str = "") -> None:
        if written:
            raise Overloaded("The queue is full; try again later.")

    monkeypatch.setattr(backend, "require_room", room)

    async def scenario(one: Kept) -> None:
        assert (await acall(one.app, {"prompt": "abcd"})).status == 503
        assert rows_in(one.file) == {}, "before the refusal is sent"

    assert run(tmp_path / "ledger.db", scenario, backend) == []
    assert len(written) >= 2 and len(set(written)) == 1, "one row, written and taken back, however often the disk made it try"
    assert backend.submitted == 0


@pytest.mark.fault("D06")
@pytest.mark.parametrize("path", ["/v1/completions", "/together/v1/completions", "/cerebras/v1/completions"])
def test_a_full_disk_is_a_503_in_the_dialects_words_or_a_row_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    full = True
    write, probe = Store.write, Store.probe

    def faulty(verb: Any) -> Any:
        def call(*arguments: Any) -> None:
            if full:
                raise sqlite3.OperationalError("database or disk is full")
            verb(*arguments)

        return call

    monkeypatch.setattr(Store, "write", faulty(write))
    monkeypatch.setattr(Store, "probe", faulty(probe))
    body = {"model": "m", "prompt": "abcd", "max_tokens": 2}

    async def refused(one: Kept) -> None:
        answer: Answer = await acall(one.app, body, path=path)
        assert (answer.status, answer.header("retry-after")) == (503, "5")
        assert "cannot keep account" in answer.body.decode()
        assert (await acall(one.app, method="GET", path="/health")).status == 200
        assert (await one.metrics())["quintet:ledger_requests_refused_total"] == 1

    async def served(one: Kept) -> None:
        nonlocal full
        for _ in range(3):
            assert (await acall(one.app, body, path=path)).status == 200
        found = await one.metrics()
        assert (found["quintet:ledger_requests_spooled_total"], found["quintet:ledger_rows_spooled"]) == (3, 3)
        full = False
        async with asyncio.timeout(PATIENCE_S):
            while (found := await one.metrics())["quintet:ledger_rows_spooled"]:
                await asyncio.sleep(0.005)
        assert found["quintet:ledger_rows_written_total"] == 3

    assert run(tmp_path / "refused.db", refused) == []
    full = True
    assert [row.state for row in run(tmp_path / "served.db", served, serve=True)] == [State.COMPLETED] * 3


def test_a_row_holds_nothing_that_a_client_wrote(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    secrets = ("canary-prompt", "canary-user", "canary-key", "canary-request", "canary-salt")

    async def scenario(one: Kept) -> None:
        headers = [*JSON, ("authorization", "Bearer canary-key"), ("x-request-id", "canary-request"), ("user-agent", "canary-request")]
        body = {"prompt": "canary-prompt", "user": "canary-user", "max_tokens": 3, "stop": ["canary-prompt"]}
        assert (await acall(one.app, body, headers=headers)).status == 200
        await one.rows(1)
        held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert not [word for word in secrets if word.encode() in held]

    (row,) = run(file, scenario, api_keys=("canary-key",))
    assert len(row.key) == 8
    assert json.dumps(row)


def test_a_key_that_has_its_share_is_refused_without_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ScriptedBackend()

    def room(count: int, tenant: str = "") -> None:
        raise TooManyRequests("This API key has its share of the queue; try again later.")

    monkeypatch.setattr(backend, "require_room", room)

    async def scenario(one: Kept) -> None:
        assert (await acall(one.app, {"prompt": "abcd"})).status == 429

    assert run(tmp_path / "ledger.db", scenario, backend) == []
