"""``/v1/batches`` over the whole stack, in this process: rights, limits, pages, what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.backends.contract.conftest import ready
from tests.ledger.files import rows_in
from tests.server.asgi import SOURCE, acall
from tests.server.kept import GOOD, Clock, World, jsonl, line, play
from tests.server.one import create_app

from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import toy_loader
from quintet.batch import Batch, NewBatch
from quintet.batches import runner
from quintet.batches.lines import Answer, Line
from quintet.batches.runner import PendingLine
from quintet.config import BatchConfig, EngineConfig, LedgerConfig, ServerConfig
from quintet.dialects.catalog import PROVIDERS
from quintet.engines import registry as engines
from quintet.errors import EngineFailed, ModelNotFound, NotAuthorized, Overloaded, TooManyRequests
from quintet.keys.key import Key
from quintet.keys.ring import LOOK_S
from quintet.keys.store import KeyStore
from quintet.ledger.ledger import Ledger
from quintet.ledger.rows import State
from quintet.quota import Limits
from quintet.server import lines as server_lines
from quintet.server.auth import ANYBODY


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "POLL_S", 0.02)
    monkeypatch.setattr(runner, "RETRY_S", 0.02)


@pytest.mark.fault("F09")
def test_a_key_sees_its_own_files_and_batches_and_no_others(tmp_path: Path) -> None:
    async def scenario(alice: World) -> None:
        alice, bob = replace(alice, key="sk-alice"), replace(alice, key="sk-bob")
        batch = await alice.ended(await alice.begin(line("a")))
        file, output = batch["input_file_id"], batch["output_file_id"]
        for path in (f"/v1/batches/{batch['id']}", f"/v1/files/{file}", f"/v1/files/{output}", f"/v1/files/{output}/content"):
            assert (await alice.get(path)).status == 200
            assert (await bob.get(path)).status == 404, path
        assert (await bob.post("/v1/batches", {**GOOD, "input_file_id": file})).status == 404
        assert (await bob.post(f"/v1/batches/{batch['id']}/cancel")).status == 404
        assert (await acall(bob.app, method="DELETE", path=f"/v1/files/{file}", headers=bob.auth)).status == 404
        assert [(await bob.get(path)).json()["data"] for path in ("/v1/files", "/v1/batches")] == [[], []]
        assert (await acall(bob.app, method="GET", path="/v1/files")).status == 401

    play(tmp_path, scenario, api_keys=("sk-alice", "sk-bob"))


@pytest.mark.fault("F11")
def test_pages_of_other_sites_may_not_cancel(tmp_path: Path) -> None:
    """A form without fields is sent without asking first."""

    async def scenario(one: World) -> None:
        long = line("a", n=1000, max_tokens=4000, ignore_eos=True)
        form = ("content-type", "application/x-www-form-urlencoded")
        for headers, status in (
            ([("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")], 403),
            ([("origin", "https://evil.example")], 403),
            ([("origin", "https://good.example"), ("sec-fetch-site", "cross-site")], 200),
            ([], 200),
        ):
            path = f"/v1/batches/{(await one.begin(long))['id']}/cancel"  # of one that nobody has cancelled: it may have ended by now
            assert (await one.form(b"", path, form, *headers)).status == status

    play(tmp_path, scenario, cors_origins=("https://good.example",))


@pytest.mark.fault("J03")
def test_no_line_tells_of_tokens_that_came_out_of_a_cache(tmp_path: Path) -> None:
    """Computed again after a kill it may find others there, and has the same bytes."""
    prompt = {"prompt": "the same words " * 20}

    async def scenario(one: World) -> None:
        usages = [(await one.post("/v1/completions", {**prompt, "max_tokens": 3})).json()["usage"] for _ in range(2)]
        cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
        assert not cached[0] and cached[1], "else this shows nothing"
        batch = await one.ended(await one.begin(line("a", **prompt), line("b", **prompt)))
        answers = await one.lines(batch["output_file_id"])
        told = [answer["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
        assert told == [0, 0]

    play(tmp_path, scenario)


@pytest.mark.parametrize(("keep", "asked", "kept"), [(7200.0, 3600, 3600), (7200.0, 2_592_000, 7200), (0.0, 3600, 3600)])
def test_no_file_is_kept_for_longer_than_the_server_keeps_them(tmp_path: Path, keep: float, asked: int, kept: int) -> None:
    async def scenario(one: World) -> None:
        said = {"anchor": "created_at", "seconds": asked}
        file = (await one.upload(jsonl(line("a")), **{f"expires_after[{name}]": str(value) for name, value in said.items()})).json()
        made = await one.post("/v1/batches", {**GOOD, "input_file_id": file["id"], "output_expires_after": said})
        output = (await one.get(f"/v1/files/{(await one.ended(made.json()))['output_file_id']}")).json()
        assert [it["expires_at"] - it["created_at"] for it in (file, output)] == [kept, kept]

    play(tmp_path, scenario, kept=BatchConfig(tmp_path / "kept", keep=keep))


def test_lists_have_pages(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        files = [(await one.upload(b"x")).json()["id"] for _ in range(5)]
        page = (await one.get("/v1/files", "limit=2")).json()
        assert ([file["id"] for file in page["data"]], page["has_more"]) == (files[:2:-1], True)
        rest = (await one.get("/v1/files", f"limit=3&after={page['last_id']}")).json()
        assert ([file["id"] for file in rest["data"]], rest["has_more"]) == (files[2::-1], False)
        assert [file["id"] for file in (await one.get("/v1/files", "order=asc")).json()["data"]] == files
        assert (await one.get("/v1/files", "purpose=batch_output")).json()["data"] == []
        for query in ("limit=0", "limit=x", "limit=10001", "order=up", "after=file-none"):
            refused = await one.get("/v1/files", query)
            assert (refused.status, refused.json()["error"]["param"]) == (400, query.partition("=")[0])
        assert (await one.get("/v1/batches", "limit=101")).status == 400

    play(tmp_path, scenario)


@pytest.mark.parametrize("name", [name for name, provider in PROVIDERS.items() if provider.batches is None])
def test_dialects_without_batches_have_no_such_paths(tmp_path: Path, name: str) -> None:
    async def scenario(one: World) -> None:
        for path in ("/v1/files", "/v1/batches", "/v1/files/x/content", "/v1/batches/x"):
            assert (await one.get(path)).status == 404

    play(tmp_path, scenario, dialect=name)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/chat/completions"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"completion_window": "48h"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"input_file_id": None}, "input_file_id"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3599}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after.anchor"),
        ({"output_expires_after": {}}, "output_expires_after.anchor"),
    ],
)
def test_what_breaks_a_rule_of_a_batch_is_refused_by_its_name(tmp_path: Path, change: dict[str, object], param: str) -> None:
    async def scenario(one: World) -> None:
        refused = await one.post("/v1/batches", {**GOOD, "input_file_id": "file-1", **change})
        assert (refused.status, refused.json()["error"]["param"]) == (400, param)

    play(tmp_path, scenario)


def test_fields_that_are_not_the_providers_are_told_and_a_strict_server_refuses_them(tmp_path: Path) -> None:
    async def lax(one: World) -> None:
        file = (await one.upload(jsonl(line("a")))).json()["id"]
        expiry = {"anchor": "created_at", "seconds": 3600, "size": 1}
        made = await one.post("/v1/batches", {**GOOD, "input_file_id": file, "colour": "red", "output_expires_after": expiry})
        assert made.status == 200 and "output_expires_after.size" in (told := str(made.header("warning"))) and "colour" in told

    async def strict(one: World) -> None:
        assert (await one.post("/v1/batches", {**GOOD, "input_file_id": "x", "colour": "red"})).json()["error"]["param"] == "colour"

    play(tmp_path, lax)
    play(tmp_path, strict, strict=True)


def test_a_lines_fields_without_an_effect_are_named_beside_its_answer(tmp_path: Path) -> None:
    """It has no headers, where a request is told of them."""

    async def scenario(one: World) -> None:
        strange = line("strange", colour="red", max_tokens=2)
        batch = await one.ended(await one.begin(strange, line("plain", max_tokens=2)))
        answers = {answer["custom_id"]: answer["response"] for answer in await one.lines(batch["output_file_id"])}
        alone = await one.post("/v1/completions", strange["body"])
        assert answers["strange"]["warnings"] == [alone.header("warning")] == ['299 - "unknown fields ignored: colour"']
        assert "warnings" not in answers["plain"]

    play(tmp_path, scenario)


def test_a_line_may_have_other_servers_fields_with_values_that_ask_for_nothing_on_a_strict_server(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        batch = await one.ended(await one.begin(line("a", skip_special_tokens=True, repetition_detection=None)))
        assert (batch["status"], batch["request_counts"]["completed"], batch["error_file_id"]) == ("completed", 1, None)

    play(tmp_path, scenario, strict=True)


def test_a_file_that_is_none_of_a_batchs_makes_a_batch_that_fails_and_says_where(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        file = (await one.upload(b"{\n" + jsonl(line("a"), line("a")))).json()["id"]
        failed = await one.ended((await one.post("/v1/batches", {**GOOD, "input_file_id": file})).json())
        assert failed["status"] == "failed" and failed["failed_at"] and failed["errors"]["object"] == "list"
        assert [(fault["code"], fault["line"]) for fault in failed["errors"]["data"]] == [
            ("invalid_json_line", 1),
            ("duplicate_custom_id", 3),
        ]

    play(tmp_path, scenario)


def test_a_line_is_refused_as_its_request_would_be_and_streams_are_not_for_batches(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        wrong = line("wrong", temperature=9)
        done = await one.ended(await one.begin(wrong, line("stream", stream=True), line("good")))
        refused = {answer["custom_id"]: answer["response"] for answer in await one.lines(done["error_file_id"])}
        alone = await one.post("/v1/completions", wrong["body"])
        assert refused["wrong"]["status_code"] == alone.status == 400 and refused["wrong"]["body"] == alone.json()
        assert refused["stream"]["body"]["error"]["param"] == "stream"
        assert done["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
        unknown = await one.ended(await one.begin(line("model", model="other")))
        assert (await one.lines(unknown["error_file_id"]))[0]["response"]["status_code"] == 404 and unknown["output_file_id"] is None

    play(tmp_path, scenario)


def test_a_keys_limits_hold_for_its_lines_which_wait_for_them(tmp_path: Path) -> None:
    """60 requests a minute, of which a minute's worth may come at once: the others come one a second."""
    store = KeyStore(tmp_path / "keys.db")
    slow = store.add(Key(b"", name="slow", limits=Limits(requests_per_minute=60, parallel=1)))
    poor = store.add(Key(b"", name="poor", limits=Limits(budget=10)))
    ledger = Ledger(LedgerConfig(tmp_path / "ledger.db"))

    async def scenario(one: World) -> None:
        alice, bob = replace(one, key=slow), replace(one, key=poor)
        done = await alice.ended(await alice.begin(*(line(str(number)) for number in range(62))))
        assert done["request_counts"] == {"total": 62, "completed": 62, "failed": 0} and done["error_file_id"] is None
        over = await bob.ended(await bob.begin(line("a", prompt="x" * 50)))
        (told,) = await bob.lines(over["error_file_id"])
        assert told["response"]["status_code"] == 429 and "Requested" in told["response"]["body"]["error"]["message"]

    play(tmp_path, scenario, keys=store.path, ledger=ledger)
    ledger.close()
    rows = [row for row in rows_in(tmp_path / "ledger.db").values() if row is not None]
    assert len(rows) == 62 and {row.state for row in rows} == {State.COMPLETED} and len({row.key for row in rows}) == 1


def test_lines_that_run_when_their_batch_is_cancelled_have_rows_that_say_so_and_no_failure(tmp_path: Path) -> None:
    ledger = Ledger(LedgerConfig(tmp_path / "ledger.db"))

    async def scenario(one: World) -> None:
        batch = await one.begin(*(line(str(number), n=1000, max_tokens=4000, ignore_eos=True) for number in range(4)))
        while not [row for row in rows_in(tmp_path / "ledger.db").values() if row is not None and row.completion]:
            await asyncio.sleep(0.05)
        assert (await one.post(f"/v1/batches/{batch['id']}/cancel")).json()["status"] == "cancelling"
        assert (await one.ended(batch))["request_counts"] == {"total": 4, "completed": 0, "failed": 4}

    play(tmp_path, scenario, ledger=ledger)
    ledger.close()
    rows = [row for row in rows_in(tmp_path / "ledger.db").values() if row is not None]
    assert rows and {(row.state, row.finish, row.status) for row in rows} == {(State.CANCELLED, "abort", 499)}


def test_a_line_that_waits_for_tokens_uses_one_request_however_often_it_is_tried(tmp_path: Path) -> None:
    """A minute's tokens may come at once; the lines beyond them are tried until enough has come back."""
    store = KeyStore(tmp_path / "keys.db")
    secret = store.add(Key(b"", name="alice", limits=Limits(requests_per_day=120, tokens_per_minute=6000)))

    async def scenario(one: World) -> None:
        alice = replace(one, key=secret)
        batch = await alice.begin(*(line(str(number), prompt="x" * 50, ignore_eos=True) for number in range(120)))
        assert (await alice.ended(batch))["request_counts"] == {"total": 120, "completed": 120, "failed": 0}

    play(tmp_path, scenario, keys=store.path)


def test_the_lines_of_a_key_that_is_not_in_force_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_lines, "_KEY_S", 0.05)
    file, gone, compute = tmp_path / "keys", asyncio.Event(), server_lines.Lines.__call__
    tried: list[int] = []
    answered: list[int] = []

    async def noted(lines: server_lines.Lines, job: PendingLine) -> Answer:
        if job.line.number > 50:
            await gone.wait()
        tried.append(job.line.number)
        answer = await compute(lines, job)
        answered.append(job.line.number)
        return answer

    monkeypatch.setattr(server_lines.Lines, "__call__", noted)

    def write(*keys: str) -> None:
        file.write_text("".join(f"{key}\n" for key in keys))
        file.chmod(0o600)

    async def scenario(one: World) -> None:
        alice = replace(one, key="sk-alice")
        batch = await alice.begin(*(line(str(number)) for number in range(100)))
        async with asyncio.timeout(60):
            while len(answered) < 50:  # those that wait would keep the later ones from being tried
                await asyncio.sleep(0.01)
            write("sk-other")
            while (await alice.get(f"/v1/batches/{batch['id']}")).status != 401:
                await asyncio.sleep(0.05)
            gone.set()
            while max((tried.count(number) for number in range(51, 101)), default=0) < 3:
                await asyncio.sleep(0.01)
        assert max(answered) <= 50
        write("sk-alice", "sk-other")
        await asyncio.sleep(LOOK_S + 0.2)
        assert (await alice.ended(batch))["request_counts"] == {"total": 100, "completed": 100, "failed": 0}
        assert sorted(answered) == list(range(1, 101))

    write("sk-alice", "sk-other")
    play(tmp_path, scenario, api_key_file=file)


@pytest.mark.fault("J03")
@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (EngineFailed("The engine died."), 500),
        (NotAuthorized("No such key."), None),
        (Overloaded("The queue is full."), None),
        (TooManyRequests("Too many.", 1.0), None),
    ],
)
def test_what_is_no_fault_of_a_lines_is_not_its_answer_at_once(error: Exception, kept: int | None) -> None:
    """It is computed again; of what may be its fault after all, such as an engine's end, the answer is kept for the last time."""

    with pytest.raises(runner.AgainError) as again:
        failing(error)
    assert (again.value.failed and again.value.failed.status) == kept


def test_a_line_that_breaks_the_server_is_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    assert failing(KeyError("whatever")).status == 500
    assert "line 1 of batch_1 broke" in caplog.text and "KeyError: 'whatever'" in caplog.text
    caplog.clear()
    assert failing(ModelNotFound("m")).status == 404
    assert not caplog.text


def failing(error: Exception) -> Answer:
    class Fails:
        async def answer(self, *_: object) -> None:
            raise error

    new = NewBatch(input_file="file-1", endpoint="/v1/completions", window="24h", window_s=60)
    batch = Batch(id="batch_1", owner="", dialect="openai", asked=new, created=0, expires=60)
    compute = server_lines.Lines(lambda _: Fails(), SimpleNamespace(of_owner=lambda _: ANYBODY), SOURCE)  # type: ignore[arg-type, return-value]
    return asyncio.run(compute(runner.PendingLine(batch, Line(1, 0, 2, "a", 0), b"{}")))


def test_unloading_a_model_waits_for_no_line_and_its_batches_wait_until_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "RETRY_S", 0.05)
    lines = [line(str(number), max_tokens=300, logit_bias={"256": -100}, seed=number) for number in range(40)]

    async def scenario(one: World) -> None:
        one = replace(one, key="admin")
        expected = await one.ended(await one.begin(*lines))
        batch = await one.begin(*lines)

        async def done() -> int:
            count: int = (await one.get(f"/v1/batches/{batch['id']}")).json()["request_counts"]["completed"]
            return count

        while not await done():
            await asyncio.sleep(0)
        started = asyncio.get_running_loop().time()
        unloaded = await one.post("/models/unload", b'{"model": "toy"}')
        assert unloaded.json() == {"model": "toy", "status": "unloaded"}
        assert asyncio.get_running_loop().time() - started < 5
        before = await done()
        await asyncio.sleep(1.5)
        assert before == await done() < 40
        assert (await one.post("/models/unload", b'{"model": "toy"}')).json()["status"] == "unloaded", "as nobody has loaded it since"
        assert (await one.post("/v1/completions", b'{"prompt": "a", "max_tokens": 1}')).status == 200
        found = await one.ended(batch)
        answers = [
            [(text["custom_id"], text["response"]["body"]["choices"]) for text in await one.lines(it["output_file_id"])]
            for it in (found, expected)
        ]
        assert answers[0] == answers[1] and found["error_file_id"] is None

    play(tmp_path, scenario, admin_key="admin")


def test_a_server_without_batches_says_so(tmp_path: Path) -> None:
    async def go() -> None:
        async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22))) as engine:
            one = World(create_app(engine, ServerConfig(), ("toy",)), tmp_path, Clock())
            for path in ("/v1/files", "/v1/batches"):
                refused = await one.get(path)
                assert refused.status == 404 and "--no-batches" in refused.json()["error"]["message"]

    asyncio.run(go())
