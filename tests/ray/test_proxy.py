"""The same front as an application of Ray Serve, behind its HTTP proxy."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import httpx2
from tests.ray.cluster import ALWAYS, END_S, until
from tests.support.processes import ENVIRONMENT


def test_the_proxy_passes_streams_errors_and_headers_of_a_dialect_on() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    line = [sys.executable, "-m", "quintet", "cluster", "--toy", "--replicas", "2", "--ray-proxy", *ALWAYS, "--port", str(port)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        assert process.stdout is not None
        assert f"at http://127.0.0.1:{port}/v1, behind Ray Serve's proxy" in process.stdout.readline()
        url = f"http://127.0.0.1:{port}"
        until(lambda: httpx2.get(f"{url}/health", timeout=60).status_code == 200)
        asked = {"prompt": "x", "max_tokens": 5, "ignore_eos": True, "seed": 1}
        whole = httpx2.post(f"{url}/fireworks/v1/completions", json=asked, timeout=60)
        assert whole.status_code == 200
        streamed = httpx2.post(f"{url}/fireworks/v1/completions", json={**asked, "stream": True}, timeout=60)
        parts = [json.loads(line.removeprefix("data: ")) for line in streamed.text.split("\n\n") if line.startswith("data: {")]
        assert "".join(part["choices"][0]["text"] for part in parts if part["choices"]) == whole.json()["choices"][0]["text"]
        wrong = httpx2.post(f"{url}/v1/completions", json={**asked, "top_p": 7}, timeout=60)
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "top_p")
        process.terminate()
        assert process.wait(END_S) == 0
    finally:
        process.kill()
        process.wait()
