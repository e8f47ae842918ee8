"""The form of an upload, over the whole stack in this process: hostile ones, large ones, slow ones."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from pathlib import Path

import pytest
from tests.server.kept import FORM, World, form, jsonl, line, play

from quintet.config import BatchConfig
from quintet.server import uploads
from quintet.server.asgi import Message
from quintet.server.http import BODY_S


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
        (form(b"x", purpose="batch").replace(b"batch", b"\xff"), FORM[1], 400),
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

    play(tmp_path, scenario, kept=BatchConfig(tmp_path / "kept", max_file=1000))


@pytest.mark.fault("G04")
@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (form(b"x").replace(b"in.jsonl", b"\xff"), None, "The body is not valid multipart/form-data: Segment header failed to decode."),
        (form(b"x", purpose="batch").replace(b'; name="purpose"', b""), None, "Each part of the form must have a name."),
        (form(b"x", purpose="batch").replace(b"--a-boundary--", b"") + form(b"x", purpose="batch"), "purpose", "'purpose' must come once."),
        (form(b"x", purpose="batch").replace(b"--a-boundary--\r\n", b"") + form(b"y"), "file", "'file' must come once."),
        (form(b"x", purpose="b" * 2000), "purpose", "'purpose' must be at most 1024 bytes."),
        (form(b"x", purpose="batch").replace(b"batch", b"\xff"), "purpose", "'purpose' must be UTF-8."),
        (form(b"x", purpose="batch", **{"\u00e9" * 99: ""}), r"\xe9" * 14 + "\\...", None),
        (
            form(b"x", **{f"field{number}": "" for number in range(20)}),
            None,
            "The form must have at most 8 parts, and headers of at most 4096 bytes.",
        ),
    ],
)
def test_what_is_wrong_with_a_form_is_said_by_its_fields_name_and_with_nothing_of_the_code(
    tmp_path: Path, body: bytes, param: str | None, message: str | None
) -> None:
    async def scenario(one: World) -> None:
        error = (await one.form(body)).json()["error"]
        assert (error["param"], error["message"]) == (param, message or f"'{param}' is not a field of this form.")

    play(tmp_path, scenario)


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_form_may_come_in_any_pieces(tmp_path: Path, size: int) -> None:
    data = jsonl(line("a\r\n--a-bound"), line("b")) + b"\r\n--a-boundar\r\n" * 50

    async def scenario(one: World) -> None:
        whole = form(data, purpose="batch")
        made = await one.form([whole[at : at + size] for at in range(0, len(whole), size)])
        assert (made.status, made.json()["bytes"]) == (200, len(data))
        assert (await one.get(f"/v1/files/{made.json()['id']}/content")).body == data

    play(tmp_path, scenario)


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

    play(tmp_path, scenario)


@pytest.mark.fault("B22")
def test_an_upload_of_a_byte_now_and_then_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "BODY_S", 0.1)

    async def scenario(one: World) -> None:
        body, statuses = form(b"x" * 5000, purpose="batch"), list[int]()

        async def send(message: Message) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        async def receive() -> Message:
            nonlocal body
            await asyncio.sleep(0.01)
            piece, body = body[:1], body[1:]
            return {"type": "http.request", "body": piece, "more_body": bool(body)}

        scope = {"type": "http", "method": "POST", "path": "/v1/files", "headers": [(FORM[0].encode(), FORM[1].encode())]}
        await one.app(scope, receive, send)
        assert statuses == [408]

    play(tmp_path, scenario)


@pytest.mark.parametrize(("first", "then", "status"), [(1000, 1000, 200), (500, 500, 408), (1000, 999, 408)])
def test_a_body_may_take_as_long_as_enough_of_it_comes_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, then: int, status: int
) -> None:
    monkeypatch.setattr(uploads, "_WRITE_BYTES", 1000)

    async def scenario(one: World) -> None:
        loop, real, passed, statuses = asyncio.get_running_loop(), asyncio.get_running_loop().time, 0.0, list[int]()
        body, size = form(b"x" * 5000, purpose="batch"), first

        async def receive() -> Message:
            nonlocal body, passed, size
            passed += BODY_S * 0.9
            for _ in range(3):
                await asyncio.sleep(0)  # for a limit that is over
            piece, body, size = body[:size], body[size:], then
            return {"type": "http.request", "body": piece, "more_body": bool(body)}

        async def send(message: Message) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        monkeypatch.setattr(loop, "time", lambda: real() + passed)
        scope = {"type": "http", "method": "POST", "path": "/v1/files", "headers": [(FORM[0].encode(), FORM[1].encode())]}
        await one.app(scope, receive, send)
        assert statuses == [status]

    play(tmp_path, scenario)
