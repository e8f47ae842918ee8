"""``/v1/files`` and ``/v1/batches`` over the whole stack, in this process: rights, limits, pages, hostile uploads, a full disk."""

from __future__ import annotations

import asyncio
import errno
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.backends.contract.conftest import ready
from tests.ledger.files import rows_in
from tests.server.asgi import JSON, Answer, acall
from tests.server.one import create_app

from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import toy_loader
from quintet.batches import runner
from quintet.batches.folder import Folder
from quintet.config import BatchConfig, EngineConfig, LedgerConfig, ServerConfig
from quintet.dialects.catalog import PROVIDERS
from quintet.keys.key import Key
from quintet.keys.ring import LOOK_S
from quintet.keys.store import KeyStore
from quintet.ledger.ledger import Ledger
from quintet.ledger.rows import State
from quintet.quota import Limits
from quintet.server import lines as server_lines
from quintet.server.asgi import ASGIApp, Message
from quintet.server.completions import Source

BOUNDARY = "a-boundary"
FORM = ("content-type", f"multipart/form-data; boundary={BOUNDARY}")
GOOD = {"input_file_id": "", "endpoint": "/v1/completions", "completion_window": "24h"}


class Clock:
    """Unix time that tests move."""

    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """A server, and who asks it."""

    app: ASGIApp
    folder: Path
    clock: Clock
    key: str = ""

    @property
    def auth(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self.key}")] if self.key else []

    async def get(self, path: str, query: str = "") -> Answer:
        return await acall(self.app, method="GET", path=path, query=query, headers=self.auth)

    async def post(self, path: str, body: object = b"") -> Answer:
        return await acall(self.app, body, path=path, headers=[*JSON, *self.auth])

    async def upload(self, data: bytes, path: str = "/v1/files", **fields: str) -> Answer:
        return await self.form(form(data, **{"purpose": "batch", **fields}), path)

    async def form(self, body: object, path: str = "/v1/files", *headers: tuple[str, str]) -> Answer:
        return await acall(self.app, body, path=path, headers=[*(headers or (FORM,)), *self.auth])

    async def begin(self, *lines: dict[str, object], **more: object) -> dict[str, Any]:
        file = (await self.upload(jsonl(*lines))).json()
        made = await self.post("/v1/batches", {**GOOD, "input_file_id": file["id"], **more})
        assert made.status == 200, made.body
        batch: dict[str, Any] = made.json()
        return batch

    async def ended(self, batch: dict[str, Any]) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while True:
                now: dict[str, Any] = (await self.get(f"/v1/batches/{batch['id']}")).json()
                if now["status"] in ("completed", "failed", "expired", "cancelled"):
                    return now
                await asyncio.sleep(0.01)

    async def lines(self, id_: str) -> list[Any]:
        return [json.loads(text) for text in (await self.get(f"/v1/files/{id_}/content")).body.splitlines()]


def form(data: bytes, **fields: str) -> bytes:
    parts = [f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{key}"\r\n\r\n{value}\r\n' for key, value in fields.items()]
    head = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\ncontent-type: text/plain\r\n\r\n'
    return "".join(parts).encode() + head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()


def line(name: str, **body: object) -> dict[str, object]:
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {"prompt": name, "max_tokens": 3, **body}}


def jsonl(*lines: dict[str, object]) -> bytes:
    return "".join(f"{json.dumps(one)}\n" for one in lines).encode()


@asynccontextmanager
async def world(folder: Path, kept: BatchConfig | None = None, ledger: Ledger | None = None, **config: Any) -> AsyncIterator[World]:
    clock = Clock()
    kept = kept or BatchConfig(folder / "kept")
    async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22))) as engine:
        app = create_app(engine, ServerConfig(batches=kept, **config), ("toy",), source=Source(now=clock), ledger=ledger)
        arriving: asyncio.Queue[Message] = asyncio.Queue()
        told: asyncio.Queue[Message] = asyncio.Queue()
        life = asyncio.create_task(_live(app, arriving, told))
        arriving.put_nowait({"type": "lifespan.startup"})
        await told.get()
        try:
            yield World(app, kept.folder, clock)
        finally:
            arriving.put_nowait({"type": "lifespan.shutdown"})
            await life


async def _live(app: ASGIApp, arriving: asyncio.Queue[Message], told: asyncio.Queue[Message]) -> None:
    await app({"type": "lifespan"}, arriving.get, told.put)


def test(folder: Path, scenario: Callable[[World], Awaitable[None]], **how: Any) -> None:
    async def go() -> None:
        async with world(folder, **how) as made:
            await scenario(made)

    asyncio.run(go())


test.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "POLL_S", 0.02)
    monkeypatch.setattr(runner, "RETRY_S", 0.02)


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

    test(tmp_path, scenario, api_keys=("sk-alice", "sk-bob"))


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

    test(tmp_path, scenario)


@pytest.mark.parametrize("name", [name for name, provider in PROVIDERS.items() if provider.batches is None])
def test_dialects_without_batches_have_no_such_paths(tmp_path: Path, name: str) -> None:
    async def scenario(one: World) -> None:
        for path in ("/v1/files", "/v1/batches", "/v1/files/x/content", "/v1/batches/x"):
            assert (await one.get(path)).status == 404

    test(tmp_path, scenario, dialect=name)


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

    test(tmp_path, scenario)


def test_fields_that_are_not_the_providers_are_told_and_a_strict_server_refuses_them(tmp_path: Path) -> None:
    async def lax(one: World) -> None:
        file = (await one.upload(jsonl(line("a")))).json()["id"]
        made = await one.post("/v1/batches", {**GOOD, "input_file_id": file, "colour": "red"})
        assert made.status == 200 and "colour" in str(made.header("warning"))

    async def strict(one: World) -> None:
        assert (await one.post("/v1/batches", {**GOOD, "input_file_id": "x", "colour": "red"})).json()["error"]["param"] == "colour"

    test(tmp_path, lax)
    test(tmp_path, strict, strict=True)


def test_a_file_that_is_none_of_a_batchs_makes_a_batch_that_fails_and_says_where(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        file = (await one.upload(b"{\n" + jsonl(line("a"), line("a")))).json()["id"]
        failed = await one.ended((await one.post("/v1/batches", {**GOOD, "input_file_id": file})).json())
        assert failed["status"] == "failed" and failed["failed_at"] and failed["errors"]["object"] == "list"
        assert [(fault["code"], fault["line"]) for fault in failed["errors"]["data"]] == [
            ("invalid_json_line", 1),
            ("duplicate_custom_id", 3),
        ]

    test(tmp_path, scenario)


def test_a_line_is_refused_as_its_request_would_be_and_streams_are_not_for_batches(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        wrong = line("wrong", temperature=9)
        done = await one.ended(await one.begin(wrong, line("stream", stream=True), line("model", model="other"), line("good")))
        refused = {answer["custom_id"]: answer["response"] for answer in await one.lines(done["error_file_id"])}
        alone = await one.post("/v1/completions", wrong["body"])
        assert refused["wrong"]["status_code"] == alone.status == 400 and refused["wrong"]["body"] == alone.json()
        assert refused["stream"]["body"]["error"]["param"] == "stream" and refused["model"]["status_code"] == 404
        assert done["request_counts"] == {"total": 4, "completed": 1, "failed": 3}

    test(tmp_path, scenario)


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

    test(tmp_path, scenario, keys=store.path, ledger=ledger)
    ledger.close()
    rows = [row for row in rows_in(tmp_path / "ledger.db").values() if row is not None]
    assert len(rows) == 62 and {row.state for row in rows} == {State.COMPLETED} and len({row.key for row in rows}) == 1


def test_the_lines_of_a_key_that_is_not_in_force_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_lines, "_KEY_S", 0.05)
    file = tmp_path / "keys"

    def write(*keys: str) -> None:
        file.write_text("".join(f"{key}\n" for key in keys))
        file.chmod(0o600)

    async def scenario(one: World) -> None:
        alice = replace(one, key="sk-alice")
        batch = await alice.begin(*(line(str(number), max_tokens=60, logit_bias={"256": -100}) for number in range(100)))
        write("sk-other")
        await asyncio.sleep(LOOK_S + 0.5)
        assert (await alice.get(f"/v1/batches/{batch['id']}")).status == 401
        write("sk-alice", "sk-other")
        await asyncio.sleep(LOOK_S + 0.2)
        assert (await alice.ended(batch))["request_counts"] == {"total": 100, "completed": 100, "failed": 0}

    write("sk-alice", "sk-other")
    test(tmp_path, scenario, api_key_file=file)


def test_files_expire_and_are_deleted_and_what_a_batch_needs_stays(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        short = (await one.upload(b"x", **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"})).json()
        long = (await one.upload(b"x")).json()
        assert (short["expires_at"], long["expires_at"]) == (1_700_003_600, 1_700_000_000 + 30 * 86_400)
        one.clock.now += 3600
        assert [(await one.get(f"/v1/files/{file['id']}")).status for file in (short, long)] == [404, 200]
        batch = await one.begin(line("slow", max_tokens=3000, logit_bias={"256": -100}, n=64))
        needed = await acall(one.app, method="DELETE", path=f"/v1/files/{batch['input_file_id']}")
        assert needed.status == 400 and batch["id"] in needed.json()["error"]["message"]
        cancelled = await one.post(f"/v1/batches/{batch['id']}/cancel")
        assert cancelled.json()["status"] == "cancelling"
        assert (await one.ended(batch))["status"] == "cancelled"
        gone = await acall(one.app, method="DELETE", path=f"/v1/files/{batch['input_file_id']}")
        assert gone.json() == {"id": batch["input_file_id"], "object": "file", "deleted": True}
        assert not (one.folder / "files" / batch["input_file_id"]).exists()
        assert (await one.get(f"/v1/files/{batch['input_file_id']}")).status == 404

    test(tmp_path, scenario)


@pytest.mark.parametrize(
    ("body", "header", "status"),
    [
        (b"{}", "application/json", 415),
        (b"", FORM[1], 400),
        (b"x" * 200_000, FORM[1], 413),
        (form(b"x", purpose="batch"), "multipart/form-data", 400),
        (form(b"x", purpose="batch"), f"multipart/form-data; boundary={'b' * 300}", 400),
        (form(b"x", purpose="fine-tune"), FORM[1], 400),
        (form(b"x"), FORM[1], 400),
        (form(b"", purpose="batch"), FORM[1], 400),
        (form(b"x", purpose="batch", colour="red"), FORM[1], 400),
        (form(b"x", purpose="b" * 2000), FORM[1], 400),
        (form(b"x", purpose="batch")[:-20], FORM[1], 400),
        (form(b"x", **{f"field{number}": "" for number in range(20)}), FORM[1], 400),
        (form(b"x", purpose="batch").replace(b"content-type: text/plain", b"x-long: " + b"x" * 9000), FORM[1], 400),
        (form(b"x", purpose="batch").replace(b"content-disposition: form-data; ", b"", 1), FORM[1], 400),
        (form(b"x", purpose="\udcff".encode("utf-8", "surrogatepass").decode("latin-1")), FORM[1], 400),
        (form(b"x" * 2000, purpose="batch"), FORM[1], 413),
        (form(b"x", purpose="batch", **{"expires_after[anchor]": "created_at"}), FORM[1], 400),
        (form(b"x", purpose="batch", **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "1"}), FORM[1], 400),
    ],
)
def test_what_is_no_form_with_a_file_is_refused_and_leaves_nothing(tmp_path: Path, body: bytes, header: str, status: int) -> None:
    async def scenario(one: World) -> None:
        refused = await one.form(body, "/v1/files", ("content-type", header))
        assert refused.status == status, refused.body
        assert refused.json()["error"]["message"]
        assert list((one.folder / "files").iterdir()) == [] and (await one.get("/v1/files")).json()["data"] == []

    test(tmp_path, scenario, kept=BatchConfig(tmp_path / "kept", max_file=1000))


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_form_may_come_in_any_pieces(tmp_path: Path, size: int) -> None:
    data = jsonl(line("a\r\n--a-bound"), line("b")) + b"\r\n--a-boundar\r\n" * 50

    async def scenario(one: World) -> None:
        whole = form(data, purpose="batch")
        made = await one.form([whole[at : at + size] for at in range(0, len(whole), size)])
        assert (made.status, made.json()["bytes"]) == (200, len(data))
        assert (await one.get(f"/v1/files/{made.json()['id']}/content")).body == data

    test(tmp_path, scenario)


def test_nothing_of_a_large_file_is_held_in_memory(tmp_path: Path) -> None:
    piece = b"x" * 65_536

    async def scenario(one: World) -> None:
        head, _, tail = form(b"DATA", purpose="batch").partition(b"DATA")
        count = 0

        async def receive() -> Message:
            nonlocal count
            count += 1
            body = head if count == 1 else tail if count == 1002 else piece
            return {"type": "http.request", "body": body, "more_body": count < 1002}

        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/files",
            "headers": [(name.encode(), value.encode()) for name, value in (FORM,)],
        }
        tracemalloc.start()
        await one.app(scope, receive, send)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert sent[0]["status"] == 200 and json.loads(sent[1]["body"])["bytes"] == 1000 * len(piece)
        assert most < 8 * 1024 * 1024

    test(tmp_path, scenario)


def test_pages_of_other_sites_may_not_upload(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        body = form(b"x", purpose="batch")
        for headers, status in (
            ([("origin", "https://evil.example")], 403),
            ([("sec-fetch-site", "cross-site")], 403),
            ([("origin", "https://good.example"), ("sec-fetch-site", "cross-site")], 200),
            ([("sec-fetch-site", "same-origin"), ("origin", "http://localhost")], 200),
        ):
            assert (await one.form(body, "/v1/files", FORM, *headers)).status == status

    test(tmp_path, scenario, cors_origins=("https://good.example",))


def test_a_full_disk_refuses_uploads_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = False
    room = Folder.require_room

    def require_room(self: Folder, more: int = 0) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        room(self, more)

    monkeypatch.setattr(Folder, "require_room", require_room)

    async def scenario(one: World) -> None:
        nonlocal full
        file = (await one.upload(jsonl(*(line(str(number)) for number in range(30))))).json()["id"]
        full = True
        refused = await one.upload(b"more")
        assert (refused.status, refused.json()["error"]["code"]) == (503, "overloaded") and refused.header("retry-after")
        batch = (await one.post("/v1/batches", {**GOOD, "input_file_id": file})).json()
        await asyncio.sleep(0.3)
        assert (await one.get(f"/v1/batches/{batch['id']}")).json()["request_counts"]["completed"] == 0
        full = False
        assert (await one.ended(batch))["request_counts"]["completed"] == 30
        assert [path.name for path in (one.folder / "files").glob("*.draft")] == []

    test(tmp_path, scenario)


def test_a_key_may_keep_only_so_much(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        assert [(await one.upload(b"x" * 600)).status for _ in range(2)] == [200, 400]

    test(tmp_path, scenario, kept=BatchConfig(tmp_path / "kept", max_stored=1000))


def test_a_folder_that_another_server_has_is_not_touched(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        other = Folder(one.folder)
        assert other.take()
        assert (await one.get("/v1/files")).status == 503
        other.leave()
        assert (await one.get("/v1/files")).status == 200

    test(tmp_path, scenario)


def test_a_server_without_batches_says_so(tmp_path: Path) -> None:
    async def go() -> None:
        async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22))) as engine:
            one = World(create_app(engine, ServerConfig(), ("toy",)), tmp_path, Clock())
            for path in ("/v1/files", "/v1/batches"):
                refused = await one.get(path)
                assert refused.status == 404 and "--no-batches" in refused.json()["error"]["message"]

    asyncio.run(go())
