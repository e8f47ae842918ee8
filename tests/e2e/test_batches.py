"""Batches over real processes: the unmodified SDK's own flow, kills of either process at any moment, and the command without a server.

``make test-batches`` has 10,000 lines and 20 kills; here there are a few.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from openai.types import Batch
from tests.e2e.test_serve_command import PATIENCE_S, Served, served
from tests.e2e.test_serve_process import children_of, until_ready
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

LINES = int(os.environ.get("QUINTET_TEST_BATCH_LINES", "200"))
KILLS = int(os.environ.get("QUINTET_TEST_BATCH_KILLS", "3"))
SEED = int(os.environ.get("QUINTET_TEST_BATCH_SEED", "1"))

ENDED = ("completed", "failed", "expired", "cancelled")


def line(number: int, **body: object) -> dict[str, object]:
    request = {"model": "toy", "prompt": f"line {number}", "max_tokens": 1 + number % 24, **body}
    return {"custom_id": f"request-{number}", "method": "POST", "url": "/v1/completions", "body": request}


def jsonl(lines: list[dict[str, object]]) -> bytes:
    return "".join(f"{json.dumps(one)}\n" for one in lines).encode()


def mixed(count: int) -> list[dict[str, object]]:
    """Requests of all kinds: seeded or not, with several choices, log-probabilities, and now and then one that is refused."""
    kinds: list[dict[str, object]] = [{}, {"seed": 5, "n": 2}, {"logprobs": 2}, {"temperature": 0, "echo": True}, {"n": 0}]
    return [line(number, **(kinds[-1] if number % 50 == 49 else kinds[number % 4])) for number in range(count)]


def client_of(one: Served, base: str = "/v1") -> OpenAI:
    return OpenAI(base_url=f"{one.url}{base}", api_key="none", max_retries=5, _strict_response_validation=base == "/v1")


def ended(client: OpenAI, batch: Batch, seconds: float = PATIENCE_S) -> Batch:
    until(lambda: client.batches.retrieve(batch.id).status.lower() in ENDED, seconds)
    return client.batches.retrieve(batch.id)


def begin(client: OpenAI, data: bytes) -> Batch:
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", metadata={"of": "test"})


def outputs(client: OpenAI, batch: Batch) -> tuple[bytes, bytes]:
    """What is in the output file, and in the error file."""
    assert batch.output_file_id and batch.error_file_id
    return client.files.content(batch.output_file_id).read(), client.files.content(batch.error_file_id).read()


def test_the_sdks_own_flow_runs_unmodified(tmp_path: Path) -> None:
    with served("--toy", "--batch-dir", str(tmp_path / "kept")) as one, client_of(one) as client:
        batch = begin(client, jsonl([line(1, seed=3), line(2, n=0), line(3)]))
        assert (batch.status, batch.object, batch.metadata) == ("validating", "batch", {"of": "test"})
        assert batch.expires_at == batch.created_at + 86_400
        done = ended(client, batch)
        assert done.status == "completed" and done.request_counts and done.usage
        assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (3, 2, 1)
        assert done.in_progress_at and done.finalizing_at and done.completed_at and done.model == "toy"
        output, errors = (list(map(json.loads, text.splitlines())) for text in outputs(client, done))
        assert [one["custom_id"] for one in output] == ["request-1", "request-3"]
        assert all(one["error"] is None and one["response"]["status_code"] == 200 for one in output)
        alone = client.completions.create(model="toy", prompt="line 1", max_tokens=2, seed=3)
        assert output[0]["response"]["body"]["choices"][0]["text"] == alone.choices[0].text
        used = [one["response"]["body"]["usage"] for one in output]
        assert (done.usage.input_tokens, done.usage.output_tokens) == tuple(
            sum(use[name] for use in used) for name in ("prompt_tokens", "completion_tokens")
        )
        (refused,) = errors
        assert (refused["custom_id"], refused["response"]["status_code"], refused["error"]) == ("request-2", 400, None)
        assert refused["response"]["body"]["error"]["param"] == "n"
        assert [one.id for one in client.batches.list()] == [batch.id]
        assert {one.purpose for one in client.files.list()} == {"batch", "batch_output"}
        assert client.files.delete(batch.input_file_id).deleted
        with pytest.raises(BadRequestError, match="this one's status is completed"):
            client.batches.cancel(batch.id)


def test_novitas_flow_runs_with_the_same_sdk(tmp_path: Path) -> None:
    with served("--toy", "--batch-dir", str(tmp_path / "kept")) as one, client_of(one, "/novita/openai/v1") as client:
        bare: dict[str, object] = {"custom_id": "a", "body": {"model": "toy", "prompt": "x", "max_tokens": 2}}
        file = client.files.create(file=("in.jsonl", jsonl([bare])), purpose="batch")
        assert file.to_dict()["metadata"] == {"total_requests": 1}
        asked: Any = "48h"
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window=asked)
        ended(client, batch)
        done: Any = client.batches.with_raw_response.retrieve(batch.id).http_response.json()  # the SDK's types are OpenAI's
        assert (done["status"], done["total"], done["completed"], done["error_file_id"]) == ("COMPLETED", 1, 1, "")
        assert str(done["created_at"])[10:11] == "T" and done["completion_window"] == "48h"
        (answer,) = map(json.loads, client.files.content(str(done["output_file_id"])).text.splitlines())
        assert answer["response"]["body"]["choices"][0]["finish_reason"] in ("stop", "length")


@contextlib.contextmanager
def again(folder: Path) -> Iterator[tuple[Served, OpenAI]]:
    with served("--toy", "--batch-dir", str(folder)) as one, client_of(one) as client:
        until_ready(one)
        yield one, client


def completed(client: OpenAI, batch: Batch) -> int:
    counts = client.batches.retrieve(batch.id).request_counts
    return counts.completed + counts.failed if counts else 0


@pytest.mark.fault("J03")
def test_whatever_is_killed_every_line_is_answered_once_and_to_the_byte_as_without(tmp_path: Path) -> None:
    """The same batch is computed twice from the moment at which its lines were accepted: undisturbed, and with kills."""
    rng, folder = random.Random(SEED), tmp_path / "kept"
    with again(folder) as (one, client):
        batch = begin(client, jsonl(mixed(LINES)))
        until(lambda: client.batches.retrieve(batch.id).status != "validating")
        one.process.kill()
        one.process.wait()
    shutil.copytree(folder, tmp_path / "undisturbed")
    points = sorted(rng.sample(range(LINES // 20, LINES, max(1, LINES // 100)), KILLS))
    killed = {"front": 0, "engine": 0}
    while points:
        with again(folder) as (one, client):
            while points and one.process.poll() is None:
                until(lambda: completed(client, batch) >= points[0], 600)
                points.pop(0)
                if rng.random() < 0.5:
                    killed["front"] += 1
                    one.process.kill()
                    one.process.wait()
                else:
                    killed["engine"] += 1
                    until(lambda: bool(children_of(one.process.pid, b"worker.child")))
                    os.kill(children_of(one.process.pid, b"worker.child")[0], signal.SIGKILL)
    with again(folder) as (_, client):
        disturbed = ended(client, batch, 1200)
        found = outputs(client, disturbed)
    with again(tmp_path / "undisturbed") as (_, client):
        expected = outputs(client, ended(client, batch, 1200))
    assert disturbed.status == "completed" and sum(killed.values()) == KILLS
    names = [json.loads(text)["custom_id"] for text in b"".join(found).splitlines()]
    assert sorted(names) == sorted(f"request-{number}" for number in range(LINES))
    assert found == expected


def test_no_drain_waits_for_lines_for_which_nobody_waits(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with again(folder) as (one, client):
        batch = begin(client, jsonl([line(number, n=64, max_tokens=4000, ignore_eos=True) for number in range(20)]))
        until(lambda: not running(one).endswith(b" 0.0"))
        since = time.monotonic()
        assert one.end(signal.SIGTERM)[0] == 0
        assert time.monotonic() - since < 5, "as one that is idle"
    with again(folder) as (_, client):
        assert client.batches.retrieve(batch.id).status == "in_progress"
        client.batches.cancel(batch.id)
        assert ended(client, batch).status == "cancelled"


def running(one: Served) -> bytes:
    """The line of ``/metrics`` that tells how many sequences run."""
    page = one.send("/metrics", None, {})[1]
    return next(text for text in page.splitlines() if text.startswith(b"vllm:num_requests_running{"))


def run(file: Path, output: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "quintet", "batch", "run", str(file), "-o", str(output), "--toy", *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def begun(process: subprocess.Popen[str], folder: Path) -> bool:
    """It computes, or has ended."""
    return any(folder.glob("*.sqlite")) or process.poll() is not None


def said_by(process: subprocess.Popen[str]) -> str:
    """All that it says until it ends."""
    return process.communicate(timeout=1200)[1]


@pytest.mark.fault("J03")
def test_the_command_is_interrupted_and_killed_and_writes_what_an_undisturbed_run_writes(tmp_path: Path) -> None:
    file, calm, disturbed = tmp_path / "in.jsonl", tmp_path / "calm.jsonl", tmp_path / "disturbed.jsonl"
    lines, kept = max(1000, LINES), tmp_path / "disturbed.jsonl.batch"  # so many that it is not done when it is interrupted
    file.write_bytes(jsonl(mixed(lines)))
    quiet = run(file, calm)
    said = said_by(quiet)
    assert quiet.returncode == 1 and f"{lines // 50} refused" in said
    for number in (signal.SIGINT, signal.SIGKILL):
        process = run(file, disturbed)
        until(functools.partial(begun, process, kept))
        time.sleep(random.Random(number).uniform(0.1, 0.5))
        process.send_signal(number)
        said_by(process)
        assert kept.exists(), "it was done before it was interrupted: it needs more lines"
    last = run(file, disturbed)
    assert "lines answered" in said_by(last) and last.returncode == 1
    assert disturbed.read_bytes() == calm.read_bytes()
    assert (tmp_path / "disturbed.errors.jsonl").read_bytes() == (tmp_path / "calm.errors.jsonl").read_bytes()
    assert not (tmp_path / "disturbed.jsonl.batch").exists()


def test_the_command_refuses_a_file_that_has_changed_and_never_overwrites(tmp_path: Path) -> None:
    file, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_bytes(jsonl(mixed(5000)))
    process = run(file, output)
    until(lambda: any((tmp_path / "out.jsonl.batch" / "files").glob("input")))
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    said = said_by(process)
    assert process.returncode == 130 and "the same command goes on" in said
    file.write_bytes(jsonl(mixed(4999)))
    changed = run(file, output)
    said = said_by(changed)
    assert changed.returncode == 1 and "has changed since" in said
    shutil.rmtree(tmp_path / "out.jsonl.batch")
    output.touch()
    there = run(file, output)
    said = said_by(there)
    assert there.returncode == 1 and "is there already" in said


def test_a_new_process_takes_the_batches_over_and_two_servers_never_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with again(folder) as (one, client):
        batch = begin(client, jsonl(mixed(400)))
        until(lambda: completed(client, batch) > 0)
        second = [sys.executable, "-m", "quintet", "serve", "--toy", "--port", "0", "--batch-dir", str(folder)]
        refused = subprocess.run(second, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert refused.returncode == 1 and "is in use by another server" in refused.stderr
        one.process.send_signal(signal.SIGUSR2)
        one.process.wait(PATIENCE_S)
        found = b"".join(outputs(client, ended(client, batch)))
    assert sorted(json.loads(text)["custom_id"] for text in found.splitlines()) == sorted(f"request-{number}" for number in range(400))


def test_options_that_contradict_are_one_line() -> None:
    for words in (("--no-batches", "--batch-dir", "x"), ("--batch-keep", "soon"), ("--batch-max-file", "big")):
        refused = subprocess.run(
            [sys.executable, "-m", "quintet", "serve", "--toy", *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert refused.returncode == 1 and refused.stderr.startswith("error: --") and len(refused.stderr.splitlines()) == 1
