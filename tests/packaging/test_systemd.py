"""The units of packaging/systemd: what systemd's own tools say of them, and a server that systemd's own program starts by its socket."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.packaging.tools import PACKAGING, tool

from quintet.cli.batch import state_dir

UNITS = PACKAGING / "systemd"
DROP_IN = UNITS / "quintet.service.d/keys.conf"
PATIENCE_S = 60


@pytest.fixture
def service(tmp_path: Path) -> Path:
    """The unit beside its socket, with a program that is there."""
    for name in ("quintet.service", "quintet.socket"):
        text = (UNITS / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("/opt/quintet/bin/quintet", sys.executable), encoding="utf-8")
    return tmp_path / "quintet.service"


def add_keys(service: Path) -> None:
    folder = service.with_name("quintet.service.d")
    folder.mkdir()
    (folder / "keys.conf").write_text(
        DROP_IN.read_text(encoding="utf-8").replace("/opt/quintet/bin/quintet", sys.executable), encoding="utf-8"
    )


@pytest.mark.parametrize("keys", [False, True])
def test_systemd_finds_nothing_wrong_with_the_units(service: Path, keys: bool) -> None:
    if keys:
        add_keys(service)
    command = [tool("systemd-analyze"), "verify", "--man=no", str(service), str(service.with_suffix(".socket"))]
    found = subprocess.run(command, capture_output=True, text=True)
    about = [line for line in (found.stdout + found.stderr).splitlines() if "quintet" in line]
    assert (found.returncode, about) == (0, [])


def test_batches_are_kept_in_a_folder_that_the_service_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = re.findall(r"^(\w+)=(.*)$", (UNITS / "quintet.service").read_text(encoding="utf-8"), re.MULTILINE)
    assert ("ProtectSystem", "strict") in settings, "all but the folders that it names is read-only"
    for name, value in settings:
        if name == "Environment":
            monkeypatch.setenv(*value.split("="))
    assert [state_dir().is_relative_to(f"/var/lib/{value}") for name, value in settings if name == "StateDirectory"] == [True]


def test_models_of_the_hub_are_kept_in_a_folder_that_the_service_may_write() -> None:
    settings = re.findall(r"^(\w+)=(.*)$", (UNITS / "quintet.service").read_text(encoding="utf-8"), re.MULTILINE)
    environment = dict(value.split("=") for name, value in settings if name == "Environment")
    code = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
    cache = Path(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout.strip())
    assert cache.is_relative_to(f"/var/cache/{dict(settings)['CacheDirectory']}")


def test_a_mistake_in_a_unit_is_found(service: Path) -> None:
    service.write_text(service.read_text().replace("Type=notify", "Tipe=notify"))
    found = subprocess.run([tool("systemd-analyze"), "verify", "--man=no", str(service)], capture_output=True, text=True)
    assert "Tipe" in found.stdout + found.stderr


def exposure(service: Path) -> float:
    command = [tool("systemd-analyze"), "security", "--offline=yes", "--no-pager", str(service)]
    said = subprocess.run(command, capture_output=True, text=True).stdout
    found = re.search(r"exposure level for \S+: ([\d.]+)", said)
    assert found, said
    return float(found[1])


def test_the_service_is_exposed_to_little(service: Path) -> None:
    """What is left is what a server on a network is: its address families, and a name of its own on the system's network."""
    assert exposure(service) <= 1.7
    service.write_text(service.read_text().replace("CapabilityBoundingSet=\n", ""))
    assert exposure(service) > 1.7


def test_systemd_s_own_program_starts_it_by_its_socket_and_is_told_when_it_is_ready(tmp_path: Path) -> None:
    notify = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told, socket.create_server(("127.0.0.1", 0)) as free:
        told.bind(str(notify))
        told.settimeout(PATIENCE_S)
        port = free.getsockname()[1]
        free.close()
        command = [tool("systemd-socket-activate"), "-l", f"127.0.0.1:{port}", f"--setenv=NOTIFY_SOCKET={notify}"]
        command += [f"--setenv={name}" for name in os.environ if name != "NOTIFY_SOCKET"]
        server = subprocess.Popen(
            [*command, sys.executable, "-m", "quintet", "serve", "--toy"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            until = time.monotonic() + PATIENCE_S
            body = json.dumps({"prompt": "a", "max_tokens": 3, "ignore_eos": True}).encode()
            ask = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"content-type": "application/json"})
            while True:
                try:
                    with urllib.request.urlopen(ask, timeout=PATIENCE_S) as reply:
                        assert json.load(reply)["usage"]["completion_tokens"] == 3
                    break
                except ConnectionRefusedError:
                    raise
                except OSError:
                    assert time.monotonic() < until
                    time.sleep(0.05)
            said = b""
            while b"READY=1" not in said:
                said += told.recv(4096)
            server.send_signal(signal.SIGTERM)
            assert server.wait(PATIENCE_S) == 0
        finally:
            server.kill()
            server.wait()


def test_every_program_the_page_of_operations_names_is_a_file_here() -> None:
    page = (PACKAGING.parent / "docs/operations.md").read_text(encoding="utf-8")
    named = re.findall(r"\]\(\.\./(packaging/[^)#]+)\)", page)
    assert named
    assert [name for name in named if not (PACKAGING.parent / name).exists()] == []
