"""``quintet serve`` and what the system grants it: environment, cores, and an engine for which nothing is to be had."""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import sys
import time
import urllib.parse
from pathlib import Path

import pytest
from tests.e2e.test_serve_command import PATIENCE_S, served
from tests.e2e.test_serve_process import child_of, engine_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SECRETS = {"QUINTET_API_KEY": "sk-0123456789abcdef", "QUINTET_ADMIN_KEY": "sk-fedcba9876543210", "HF_TOKEN": "hf_0123456789"}


@pytest.mark.fault("G09")
def test_the_children_of_a_server_have_none_of_its_keys_and_nobody_leaves_a_core() -> None:
    with served("--toy", **SECRETS) as one:
        asked = {"prompt": "x", "max_tokens": 2, "response_format": {"type": "json_object"}}
        key = {"Authorization": f"Bearer {SECRETS['QUINTET_API_KEY']}"}
        request = http.client.HTTPConnection(urllib.parse.urlsplit(one.url).netloc, timeout=PATIENCE_S)
        request.request("POST", "/fireworks/inference/v1/completions", json.dumps(asked), {"Content-Type": "application/json", **key})
        assert request.getresponse().status == 200
        request.close()
        children = [child_of(one, module) for module in (b"worker.child", b"guides.process", b"watch.py")]
        for child in children:
            environment = Path(f"/proc/{child}/environ").read_bytes()
            assert b"PATH=" in environment
            assert not any(secret.encode() in environment for secret in SECRETS.values())
        for pid in (one.process.pid, *children[:2]):
            (limit,) = (line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max core file size"))
            assert limit.split()[4:6] == ["0", "0"]


@pytest.mark.fault("D12")
def test_an_engine_for_which_there_are_no_descriptors_is_tried_on_with_pauses_until_there_are() -> None:
    with served("--toy") as one:
        before = resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE)
        asking = http.client.HTTPConnection(urllib.parse.urlsplit(one.url).netloc, timeout=PATIENCE_S)

        def health() -> tuple[int, str]:
            asking.request("GET", "/health")
            reply = asking.getresponse()
            return reply.status, json.loads(reply.read())["status"]

        assert health() == (200, "ok")
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        os.kill(engine_of(one), signal.SIGKILL)
        while health() != (503, "dead"):
            time.sleep(0.02)
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, before)
        while health() != (200, "ok"):
            time.sleep(0.02)
        asking.request("GET", "/metrics")
        page = asking.getresponse().read().decode()
        asking.close()
        lines = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if "engine_restarts_total{" in line}
        counted = {reason: count for line, count in lines.items() for reason in ("crashed", "unstarted") if reason in line}
        assert (counted["crashed"], counted["unstarted"] >= 3) == (1, True)
        code, err = one.end(signal.SIGTERM)
        assert code == 0
        assert "the engine's process cannot be started: Too many open files. It is started again in 1 s" in err
