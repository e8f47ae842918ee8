"""``/v1/files`` over the whole stack, in this process: a full disk, what expires, how much a key may keep."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.server.asgi import acall
from tests.server.kept import FORM, GOOD, World, form, jsonl, line, play

from quintet.batches import runner
from quintet.batches.folder import Folder
from quintet.batches.store import Store
from quintet.config import BatchConfig
from quintet.dialects.batches import Batches
from quintet.server import files, uploads
from quintet.server.asgi import Message


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "POLL_S", 0.02)
    monkeypatch.setattr(runner, "RETRY_S", 0.02)


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

    play(tmp_path, scenario)


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_list_goes_on_after_a_file_that_was_deleted_or_has_expired(tmp_path: Path, order: str) -> None:
    """As an SDK does for ``for file in client.files.list(limit=2): client.files.delete(file.id)``."""

    async def scenario(one: World) -> None:
        more = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
        files = [(await one.upload(b"x", **more)).json()["id"] for _ in range(5)]
        seen: list[str] = []
        while page := (await one.get("/v1/files", f"limit=2&order={order}" + "".join(f"&after={id_}" for id_ in seen[-1:]))).json()["data"]:
            for file in page:
                assert (await acall(one.app, method="DELETE", path=f"/v1/files/{file['id']}")).status == 200
            seen += [file["id"] for file in page]
        assert seen == (files if order == "asc" else files[::-1])
        first, last = (await one.upload(b"x", **more)).json()["id"], (await one.upload(b"x")).json()["id"]
        one.clock.now += 3600
        connection = sqlite3.connect(Folder(one.folder).database)
        Store(connection).expire(one.clock.now, 0)
        connection.commit()
        after = first if order == "asc" else last
        expected = [last] if order == "asc" else []
        assert [file["id"] for file in (await one.get("/v1/files", f"order={order}&after={after}")).json()["data"]] == expected
        Store(connection).expire(one.clock.now + 86_400, 0)
        connection.commit()
        connection.close()
        assert (await one.get("/v1/files", f"after={first}")).status == 400

    play(tmp_path, scenario)


def test_a_list_of_batches_goes_on_after_one_that_is_forgotten(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        old = await one.ended(await one.begin(line("a")))
        one.clock.now += 3600
        new = await one.ended(await one.begin(line("a")))
        connection = sqlite3.connect(Folder(one.folder).database)
        Store(connection).expire(one.clock.now, 3600)
        connection.commit()
        connection.close()
        assert [batch["id"] for batch in (await one.get("/v1/batches")).json()["data"]] == [new["id"]]
        assert (await one.get("/v1/batches", f"after={old['id']}")).json()["data"] == []
        await acall(one.app, method="DELETE", path=f"/v1/files/{old['output_file_id']}")
        assert (await one.get("/v1/batches", f"after={old['output_file_id']}")).status == 400, "it was in the list of files"

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/files", "POST, GET, HEAD"),
        ("/files/x", "GET, DELETE, HEAD"),
        ("/files/x/content", "GET, HEAD"),
        ("/batches", "POST, GET, HEAD"),
        ("/batches/x", "GET, HEAD"),
        ("/batches/x/cancel", "POST"),
    ],
)
def test_a_method_that_is_not_there_is_told_the_paths_own(tmp_path: Path, path: str, allowed: str) -> None:
    async def scenario(one: World) -> None:
        answer = await acall(one.app, method="PUT", path=f"/v1{path}")
        assert (answer.status, answer.header("allow")) == (405, allowed)
        assert (await acall(one.app, method="PUT", path="/v1/files/x/cancel")).status == 405, "a file of that name"

    play(tmp_path, scenario)


class Slow:
    """An upload whose file comes a piece at a time, when it may; the download of one is as slow."""

    def __init__(self, one: World, key: str, method: str = "POST", path: str = "/v1/files") -> None:
        self.status, self.body = 0, b""
        self.waits, self.go_on = asyncio.Event(), asyncio.Event()
        self._messages = [form(b"x" * 300, purpose="batch")[:-40]] if method == "POST" else [b""]
        headers = [(name.encode(), value.encode()) for name, value in (FORM, ("authorization", f"Bearer {key}"))]
        scope = {"type": "http", "method": method, "path": path, "headers": headers}
        self.task = asyncio.ensure_future(one.app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if self._messages:
            return {"type": "http.request", "body": self._messages.pop(), "more_body": True}
        self.waits.set()
        await self.go_on.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")
        if message["type"] == "http.response.body":
            self.waits.set()
            if self.status == 200:
                await self.go_on.wait()


@pytest.mark.fault("B22")
def test_files_that_come_or_go_slowly_are_few_and_leave_others_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_AT_ONCE", 8)

    async def scenario(one: World) -> None:
        kept = {}
        for one.key in "abc":
            kept[one.key] = (await one.upload(b"x")).json()["id"]
        slow = [Slow(one, "a") for _ in range(3)]
        slow.append(Slow(one, "a", "GET", f"/v1/files/{kept['a']}/content"))
        await asyncio.gather(*(each.waits.wait() for each in slow))
        one.key = "a"
        for refused in (await one.upload(b"x"), await one.get(f"/v1/files/{kept['a']}/content")):
            assert refused.status == 429 and refused.header("retry-after")
        assert (await one.get("/v1/files")).status == 200
        for key in "bbcd":  # one after the other: what is left for a key that has a place depends on who came before
            slow.append(Slow(one, key))
            await slow[-1].waits.wait()
        assert len(list((one.folder / "files").glob("*.draft"))) == 7
        one.key = "e"
        assert (await one.upload(b"x")).status == 503
        for each in slow:
            each.go_on.set()
        await asyncio.gather(*(each.task for each in slow))
        assert (await one.upload(b"x")).status == 200

    play(tmp_path, scenario, api_keys=tuple("abcde"))


@pytest.mark.fault("F11")
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

    play(tmp_path, scenario, cors_origins=("https://good.example",))


@pytest.mark.fault("J05")
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

    play(tmp_path, scenario)


def test_a_key_may_keep_only_so_much(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        assert [(await one.upload(b"x" * 600)).status for _ in range(2)] == [200, 400]
        assert len(list((one.folder / "files").iterdir())) == 1

    play(tmp_path, scenario, kept=BatchConfig(tmp_path / "kept", max_stored=1000))


def test_a_key_may_keep_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_FILES", 2)

    async def scenario(one: World) -> None:
        *taken, refused = [await one.upload(b"x") for _ in range(3)]
        assert [answer.status for answer in (*taken, refused)] == [200, 200, 400]
        assert "a key may have 2 files" in refused.json()["error"]["message"]

    play(tmp_path, scenario)


def test_an_upload_that_no_longer_fits_when_it_is_there_leaves_nothing(tmp_path: Path) -> None:
    """Another one has come to its end since it began."""
    head, _, tail = form(b"DATA", purpose="batch").partition(b"DATA")

    async def scenario(one: World) -> None:
        pieces, statuses = [head, b"x" * 600 + tail], list[int]()

        async def receive() -> Message:
            if len(pieces) == 1:
                assert (await one.upload(b"y" * 600)).status == 200
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        async def send(message: Message) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        scope = {"type": "http", "method": "POST", "path": "/v1/files", "headers": [(FORM[0].encode(), FORM[1].encode())]}
        await one.app(scope, receive, send)
        assert statuses == [400]
        (file,) = (await one.get("/v1/files")).json()["data"]
        assert [path.name for path in (one.folder / "files").iterdir()] == [file["id"]]

    play(tmp_path, scenario, kept=BatchConfig(tmp_path / "kept", max_stored=1000))


@pytest.mark.fault("J05")
def test_what_is_still_arriving_counts_towards_what_a_key_may_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_WRITE_BYTES", 100)
    head, _, tail = form(b"DATA", purpose="batch").partition(b"DATA")

    async def scenario(one: World) -> None:
        written, go_on, statuses = asyncio.Event(), asyncio.Event(), list[int]()

        async def slow(end: bytes | None) -> None:
            """An upload of 600 bytes whose end comes when it may, or never."""
            messages: list[Message] = [{"type": "http.request", "body": head + b"x" * 600, "more_body": True}]

            async def receive() -> Message:
                if messages:
                    return messages.pop()
                written.set()
                await go_on.wait()
                return {"type": "http.disconnect"} if end is None else {"type": "http.request", "body": end, "more_body": False}

            async def send(message: Message) -> None:
                statuses.extend([message["status"]] if "status" in message else [])

            headers = [(name.encode(), value.encode()) for name, value in (FORM,)]
            await one.app({"type": "http", "method": "POST", "path": "/v1/files", "headers": headers}, receive, send)

        for end, status in ((None, []), (tail, [200])):
            written.clear()
            go_on.clear()
            uploading = asyncio.create_task(slow(end))
            await written.wait()
            assert (await one.upload(b"y" * 600)).status == 400
            assert sum(path.stat().st_size for path in (one.folder / "files").iterdir()) <= 1000
            go_on.set()
            await uploading
            assert statuses == status
        assert (await one.upload(b"y" * 400)).status == 200
        assert (await one.upload(b"y")).status == 400

    play(tmp_path, scenario, kept=BatchConfig(tmp_path / "kept", max_stored=1000))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.write_bytes(b"ab"), "The file's content is damaged."),
        (Path.mkdir, "The file's content is damaged."),
        (os.mkfifo, "The file's content is damaged."),
        (lambda path: path.symlink_to(path), "The file's content cannot be read."),
    ],
)
def test_a_content_that_is_not_what_was_kept_is_an_error_and_the_log_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], object], says: str
) -> None:
    async def scenario(one: World) -> None:
        file = (await one.upload(b"abc")).json()["id"]
        content = one.folder / "files" / file
        content.unlink()
        spoil(content)
        async with asyncio.timeout(20):
            told = await one.get(f"/v1/files/{file}/content")
        assert (told.status, told.json()["error"]["message"]) == (500, says)
        assert str(content) in caplog.text
        assert (await one.get(f"/v1/files/{(await one.upload(b'abc')).json()['id']}/content")).body == b"abc"

    play(tmp_path, scenario)


def test_a_content_that_cannot_be_removed_keeps_no_file_from_being_deleted(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        file = (await one.upload(b"abc")).json()["id"]
        content = one.folder / "files" / file
        content.unlink()
        content.mkdir()
        deleted = await acall(one.app, method="DELETE", path=f"/v1/files/{file}")
        assert (deleted.status, deleted.json()["deleted"]) == (200, True)
        assert (await one.get(f"/v1/files/{file}")).status == 404

    play(tmp_path, scenario)


def test_a_list_is_told_off_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of ten thousand files held it up for sixty milliseconds, one of a hundred batches with all the metadata that they may have for
    more, and as often as somebody asked."""
    threads: list[bool] = []

    def noted(tell: Callable[..., bytes]) -> Callable[..., bytes]:
        def telling(*arguments: object) -> bytes:
            threads.append(threading.current_thread() is threading.main_thread())
            return tell(*arguments)

        return telling

    monkeypatch.setattr(Batches, "files", noted(Batches.files))
    monkeypatch.setattr(Batches, "batches", noted(Batches.batches))

    async def scenario(one: World) -> None:
        ids = [(await one.upload(jsonl(line("a")))).json()["id"] for _ in range(3)]
        pages = [(await one.get("/v1/files", f"order=asc&limit={limit}")).json()["data"] for limit in (2, 3)]
        assert [[file["id"] for file in page] for page in pages] == [ids[:2], ids]
        assert (await one.get("/v1/batches")).json()["data"] == []

    play(tmp_path, scenario)
    assert threads == [False] * 3
