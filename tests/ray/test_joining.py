"""What answers at ``--ray-address``, and what is told of Ray's errors; most of it without a Ray."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
import ray

from quintet import logs
from quintet.deploy import ray as deploy


@contextlib.contextmanager
def answering(said: bytes | None) -> Iterator[str]:
    """Somebody who says this to the first who connects; ``None`` = takes the connection and is silent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(1024)
                sock.sendall(said or b"")

        if said is not None:
            Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_who_takes_a_connection_and_is_silent_is_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "REACH_S", 0.3)
    with answering(None) as address, pytest.raises(ConnectionError, match=f"^{address} takes connections, but is no Ray head"):
        deploy.connect(address)


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0", b""])
def test_who_answers_something_else_is_no_head(said: bytes) -> None:
    with answering(said) as address, pytest.raises(ConnectionError, match=f"^{address} answers, but is no Ray head|reset"):
        deploy.connect(address)


def test_a_head_is_one() -> None:
    deploy.connect("", 1)
    try:
        deploy._require_head(ray.get_runtime_context().gcs_address)
    finally:
        deploy.disconnect()


def test_of_rays_errors_the_first_cause_is_told() -> None:
    text = "Deploying application quintet failed: Traceback:\n  File x\nray.exceptions.RayTaskError: ray::A\n  y\nValueError: no such file"
    assert deploy.root_cause(text) == "no such file"
    assert deploy.root_cause("one line\nanother") == "one line"
    assert deploy.root_cause("")


def test_why_a_front_does_not_come_up_behind_the_proxy_is_told_in_one_line() -> None:
    def broken() -> deploy.Front:
        raise FileNotFoundError("no such file as weights.gguf")

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    deploy.connect("", 1)
    try:
        with pytest.raises(deploy.DeploymentError) as told, deploy.listening(deploy.behind_proxy(broken), "127.0.0.1", port):
            pass
    finally:
        deploy.disconnect()
    assert str(told.value) == "--ray-proxy: Ray Serve cannot start the front: no such file as weights.gguf"


@pytest.mark.parametrize("local", [True, False])
def test_with_a_ray_of_this_machine_a_replica_listens_for_this_machine_alone(monkeypatch: pytest.MonkeyPatch, local: bool) -> None:
    listened: list[str] = []
    monkeypatch.setattr(deploy, "Host", lambda address, *_: listened.append(address))
    monkeypatch.setattr(logs, "set_up", lambda *_: None)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.7")
    deploy.Replica(deploy.Files("", "", offline=True), b"", local=local, vllm=False, level="info", form="text")
    assert listened == ["127.0.0.1" if local else "192.0.2.7"]


def test_models_that_are_not_at_the_fronts_paths_are_resolved_where_the_replica_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "Host", lambda *_: SimpleNamespace(port=1))
    monkeypatch.setattr(logs, "set_up", lambda *_: None)
    files = deploy.Files("/nowhere/model.gguf", "smollm2", offline=True, draft="/nowhere/draft.gguf", draft_reference="smollm2")
    place = deploy.Replica(files, b"", local=True, vllm=False, level="info", form="text").place()
    assert Path(place.model).is_file()
    assert place.draft == place.model


def test_the_front_outlives_a_clusters_head_and_ray_says_nothing_on_our_output() -> None:
    said = "import os, quintet.deploy.ray; print(*map(os.getenv, ('RAY_gcs_rpc_server_reconnect_timeout_s', 'RAY_SCHEDULER_EVENTS')))"
    assert subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True).stdout.split() == ["86400", "0"]
