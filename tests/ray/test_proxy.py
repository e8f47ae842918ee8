"""The same front as an application of Ray Serve, behind its HTTP proxy."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import httpx2
import ray
from ray.cluster_utils import Cluster
from tests.ray.cluster import ALWAYS, END_S, until
from tests.support.processes import ENVIRONMENT

from quintet.deploy import ray as deploy


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_the_proxy_passes_streams_errors_and_headers_of_a_dialect_on() -> None:
    port = free_port()
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


def test_the_front_is_on_the_machine_of_the_command_whose_files_it_opens() -> None:
    """Keys, the ledger and batches: on another machine they would be missing, or begun anew."""

    class Telling:
        """Answers with the machine that it is on."""

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": ray.get_runtime_context().get_node_id().encode()})

        def require_healthy(self) -> None:
            pass

    machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})  # as where the head does not compute
    try:
        machines.add_node(num_cpus=2)
        machines.wait_for_nodes()
        deploy.connect(machines.address)
        port = free_port()
        with deploy.listening(deploy.behind_proxy(Telling), "127.0.0.1", port):
            assert httpx2.get(f"http://127.0.0.1:{port}/", timeout=60).text == ray.get_runtime_context().get_node_id()
    finally:
        deploy.disconnect()
        machines.shutdown()
