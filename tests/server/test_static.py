"""The playground's files: what is sent, to whom, under which policy, and that nothing in them asks anybody else."""

from __future__ import annotations

import gzip
import hashlib
import re
from typing import Any

import pytest
from tests.server.asgi import Answer, call
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.server.static import FOLDER, files

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self' data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
MARKUP = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|dangerouslySet|srcdoc"
MOST_BYTES = 200_000
MOST_LINES = 400


def get(path: str, *headers: tuple[str, str], method: str = "GET", **config: Any) -> Answer:
    return call(create_app(ScriptedBackend(), ServerConfig(**config)), method=method, path=path, headers=headers)


def test_the_page_is_html_under_a_strict_policy() -> None:
    answer = get("/")
    assert (answer.status, answer.header("content-type")) == (200, "text/html; charset=utf-8")
    policy = answer.header("content-security-policy") or ""
    assert dict(part.strip().split(" ", 1) for part in policy.split(";")) == POLICY
    assert answer.header("x-content-type-options") == "nosniff"


def test_every_file_is_served_with_its_type() -> None:
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html", ".txt": "text/plain"}
    found = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert found == set(files()) >= {"index.html", "main.js", "vendor/htm-preact.js"}
    for name in found:
        answer = get(f"/playground/{name}")
        assert (answer.status, answer.body) == (200, (FOLDER / name).read_bytes())
        assert (answer.header("content-type") or "").startswith(kinds[name[name.rindex(".") :]])


def test_who_takes_gzip_gets_a_third_of_it() -> None:
    plain, packed = get("/playground/main.js"), get("/playground/main.js", ("accept-encoding", "gzip, deflate, br"))
    assert (plain.header("content-encoding"), packed.header("content-encoding")) == (None, "gzip")
    assert gzip.decompress(packed.body) == plain.body
    assert plain.header("vary") == packed.header("vary") == "accept-encoding"
    assert sum(len(file.packed) for file in files().values()) < 0.4 * sum(len(file.body) for file in files().values())


def test_what_has_not_changed_is_not_sent_again() -> None:
    first = get("/playground/main.js")
    etag = first.header("etag") or ""
    again = get("/playground/main.js", ("if-none-match", f'"x", {etag}'))
    assert (again.status, again.body, again.header("etag")) == (304, b"", etag)
    assert first.header("cache-control") == "no-cache"
    assert get("/playground/main.js", ("if-none-match", '"x"')).status == 200
    assert get("/playground/base.css").header("etag") != etag


@pytest.mark.parametrize("path", ["/playground/", "/playground/nope.js", "/playground/../static.py", "/playground/vendor"])
def test_nothing_else_is_beneath_it(path: str) -> None:
    answer = get(path)
    assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["/", "/playground/main.js"])
def test_methods(path: str) -> None:
    assert get(path, method="HEAD").header("etag") == get(path).header("etag")
    answer = get(path, method="POST")
    assert (answer.status, answer.header("allow")) == (405, "GET, HEAD")


def test_who_asks_for_json_alone_is_told_as_before_that_there_is_none() -> None:
    assert get("/", ("accept", "application/json")).json()["error"]["code"] == "not_found"
    for accepted in ("*/*", "text/html,application/json", "application/json, */*;q=0.1"):
        assert get("/", ("accept", accepted)).status == 200


def test_the_page_needs_no_key_and_gives_none_away() -> None:
    """Public by name: a path to come beneath it needs a key, like all else."""
    for path in ("/", "/playground/main.js"):
        assert get(path, api_keys=("sk-secret",)).status == 200
    assert get("/playground/nope.js", api_keys=("sk-secret",)).status == 401
    assert get("/v1/models", api_keys=("sk-secret",)).status == 401


def test_a_host_that_is_not_ours_gets_no_page() -> None:
    assert get("/", ("host", "evil.example"), allowed_hosts=("localhost",)).status == 421


def test_nothing_is_loaded_from_anybody_else_and_nothing_is_markup_or_code_in_a_string() -> None:
    for name, file in files().items():
        text = file.body.decode()
        if name.startswith("vendor/") or name.endswith(".svg"):
            continue
        assert not re.search(r"""["'`(=]\s*(https?:)?//[\w\[]""", text), name
        assert not re.search(MARKUP, text), name
        assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\son\w+=\"|\sstyle=", text), name


def test_what_others_wrote_is_what_was_recorded() -> None:
    recorded = (FOLDER / "vendor/VENDORED.txt").read_text()
    named = dict(re.findall(r"^(\S+\.js)\n(?:  .*\n)*?  sha256 ([0-9a-f]{64})$", recorded, re.MULTILINE))
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (FOLDER / "vendor").glob("*.js")}
    assert found == named


def test_it_is_small() -> None:
    assert sum(len(file.body) for file in files().values()) < MOST_BYTES
    for name, file in files().items():
        if not name.startswith("vendor/"):
            assert file.body.count(b"\n") <= MOST_LINES, name
