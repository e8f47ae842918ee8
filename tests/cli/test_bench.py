"""``quintet bench``: on real servers in the words of each page, what it counts, and what it says when they fail."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.e2e.test_check import PATHS
from tests.e2e.test_serve_command import PATIENCE_S, Served, served
from tests.support.command import Done, command

from quintet.cli import bench as benching
from quintet.cli.app import app
from quintet.cli.asking import UnusableServerError
from quintet.cli.bench_report import BARS, Measured, drawn, svg
from quintet.cli.console import OptionError
from quintet.load.client import Trace
from quintet.load.figures import summary

KEY, ADMIN = "key-of-the-load", "key-of-the-admin"
IGNORE = '{"ignore_eos": true}'


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("--toy", "--api-key", KEY, "--admin-key", ADMIN) as found:
        yield found


def bench(url: str, *words: str, key: str = KEY) -> Done:
    return command("bench", url, "--key", key, *words)


def told(run: Done) -> dict[str, Any]:
    assert (run.returncode, run.stderr) == (0, "")
    assert KEY not in run.stdout
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize("page", PATHS)
def test_each_page_is_spoken_to_and_the_servers_own_counts_are_told(server: Served, page: str) -> None:
    words = "--as", page, "-n", "4", "-c", "2", "--max-tokens", "8", "--extra", IGNORE, "--json"
    found = told(bench(server.url + PATHS[page], *words))
    assert (found["page"], found["model"], found["summary"]["requests"], found["summary"]["failed"]) == (page, "toy", 4, 0)
    assert found["summary"]["tokens"] == 32
    assert found["summary"]["prompt_tokens"] >= 4 * 64
    assert 0 < found["summary"]["ttft_ms"]["p50"] <= found["summary"]["whole_ms"]["p50"]
    assert sum(found["tokens_in_each_second"]) == pytest.approx(32, abs=1)


def test_arrivals_and_answers_that_are_no_streams(server: Served) -> None:
    found = told(bench(server.url, "--rate", "40", "-n", "8", "--no-stream", "--max-tokens", "4-6", "--extra", IGNORE, "--json"))
    assert (found["clients"], found["rate"], found["summary"]["requests"], found["summary"]["failed"]) == (0, 40, 8, 0)
    assert 8 * 4 <= found["summary"]["tokens"] <= 8 * 6
    assert found["summary"]["gap_ms"] == {}


def test_each_load_has_requests_of_its_own_unless_a_seed_is_given_and_the_seed_is_told(server: Served) -> None:
    """A prefix cache has the prompts of the last one."""
    words = "-n", "1", "--max-tokens", "2"
    seeds = [told(bench(server.url, *words, *more, "--json"))["seed"] for more in ((), (), ("--seed", "7"), ("--seed", "0"))]
    assert len({*seeds}) == 4 and seeds[2:] == [7, 0]
    assert ", seed 7\n" in bench(server.url, *words, "--seed", "7").stdout


def test_a_time_ends_it_and_people_get_figures_charts_and_a_picture(server: Served, tmp_path: Path) -> None:
    file = tmp_path / "report.svg"
    program = [sys.executable, "-m", "quintet", "bench", server.url, "--duration", "1s", "--max-tokens", "16", "--svg", str(file)]
    env = {**os.environ, "QUINTET_CLIENT_KEY": KEY}
    run = subprocess.run(program, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (run.returncode, run.stderr) == (0, "")
    assert "tokens per second" in run.stdout and any(bar in run.stdout for bar in BARS[1:]) and "\x1b" not in run.stdout
    assert all(len(line) <= 100 for line in run.stdout.splitlines())
    assert ET.parse(file).getroot().tag.endswith("svg")
    assert "@font-face" not in file.read_text()


def interrupted_bench(url: str, *words: str, when: Callable[[], object]) -> tuple[int, str, str]:
    """The command as after Ctrl-C once ``when`` has returned: (exit code, stdout, stderr)."""
    program = [sys.executable, "-m", "quintet", "bench", url, "--model", "toy", *words]
    env = {**os.environ, "QUINTET_CLIENT_KEY": KEY}
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True) as process:
        when()
        process.send_signal(signal.SIGINT)
        return (process.wait(PATIENCE_S), *process.communicate())


@pytest.mark.parametrize("words", [("--duration", "60s"), ("--rate", "50", "--duration", "60s"), ("-n", "100000")])
def test_ctrl_c_reports_what_was_answered_by_then(server: Served, words: tuple[str, ...], tmp_path: Path) -> None:
    def answered() -> float:
        status, metrics = server.send("/metrics", None, {"Authorization": f"Bearer {ADMIN}"})
        assert status == 200
        return sum(float(line.split()[-1]) for line in metrics.decode().splitlines() if line.startswith("vllm:request_success_total"))

    file, before = tmp_path / "report.svg", answered()

    def some_are_answered() -> None:
        while answered() < before + 20:
            time.sleep(0.05)

    code, out, err = interrupted_bench(server.url, *words, "--extra", IGNORE, "--json", "--svg", str(file), when=some_are_answered)
    assert (code, err) == (130, "")
    told = json.loads(out)["summary"]
    assert 0 < told["requests"] < 100000 and told["failed"] == 0 and 0 < told["wall_s"] < 60
    assert ET.parse(file).getroot().tag.endswith("svg")


def test_ctrl_c_before_any_answer_reports_nothing() -> None:
    with contextlib.ExitStack() as open_, socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert interrupted_bench(url, when=lambda: open_.enter_context(silent.accept()[0])) == (130, "", "")


def test_a_picture_that_cannot_be_written_is_told_before_any_load_and_leaves_nothing(tmp_path: Path) -> None:
    here, there, link = tmp_path / "new.svg", tmp_path / "old.svg", tmp_path / "link.svg"
    there.write_text("old")
    link.symlink_to(tmp_path / "gone.svg")
    before = sorted(tmp_path.iterdir())
    for file, said in ((tmp_path / "none" / "x.svg", "No such file or directory"), (tmp_path, "Is a directory")):
        assert bench("http://127.0.0.1:9", "--svg", str(file)).stderr == f"error: --svg: {file} cannot be written: {said}.\n"
    for file in (here, there, link):
        assert "the connection failed" in bench("http://127.0.0.1:9", "--svg", str(file)).stderr
    assert sorted(tmp_path.iterdir()) == before and there.read_text() == "old"


@pytest.mark.parametrize(
    ("words", "key", "said"),
    [(("--model", "none"), KEY, "status 404"), ((), "wrong", "status 401"), (("--extra", '{"n": 0}'), KEY, "status 400")],
)
def test_a_server_that_refuses_everything_is_an_error_that_quotes_it(server: Served, words: tuple[str, ...], key: str, said: str) -> None:
    run = bench(server.url, "-n", "2", "--model", "toy", *words, key=key)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (1, "", 1)
    assert run.stderr.count(said) == 1 and "key-of" not in run.stderr


@pytest.mark.parametrize(
    ("key", "said"), [("", "without a key (status 401); give one with"), ("no", "with this key (status 401); give another with")]
)
def test_a_server_that_lists_its_models_to_keys_alone_is_an_error_that_names_the_option(server: Served, key: str, said: str) -> None:
    run = bench(server.url, "-n", "2", key=key)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == f"error: {server.url}/v1/models is not shown {said} --key.\n"


def test_nobody_there_is_an_error() -> None:
    run = bench("http://127.0.0.1:9", "--model", "m")
    assert (run.returncode, run.stdout) == (1, "") and "no connection" in run.stderr


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", b"HTTP/1.1 503 Service Unavailable\r\n\r\n"],
    ids=["nothing", "no end", "no end of an error"],
)
def test_a_warm_up_is_over_with_the_first_request_that_nobody_answers(answer: bytes) -> None:
    """A million of them went on for as long as each may take, or for minutes where each was refused."""
    asked: list[socket.socket] = []

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                asked.append(listening.accept()[0])
                asked[-1].sendall(answer)
                if not answer:
                    asked[-1].close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        result = CliRunner().invoke(app, ["bench", url, "--model", "m", "--warm-up", "40", "--timeout", "1"])
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    for one in asked:
        one.close()
    assert isinstance(result.exception, UnusableServerError)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--clients", "2", "--rate", "3"), "--clients is for clients that wait"),
        (("-n", "2", "--duration", "3"), "--requests and --duration both"),
        (("--duration", "0"), "--duration must be above 0"),
        (("--rate", "20000", "--duration", "1m"), "--rate times --duration must be at most 500,000, got 1.2e+06."),
        (("--rate", "20000"), "--rate times --duration must be at most 500,000, got 600000."),
        (("-n", "600000"), "--requests must be at most 500,000, got 600000."),
        (("--duration", "soon"), "--duration must be a number with a unit"),
        (("--prompt-tokens", "9-3"), "--prompt-tokens must be a number such as 64, or two"),
        (("--max-tokens", "x"), "--max-tokens must be a number such as 64, or two"),
        (("--extra", "[1]"), "--extra must be a JSON object"),
        (("--prompt-tokens", "4-9", "--same-prefix", "5"), "--same-prefix must be at most the least of --prompt-tokens, 4, got 5."),
    ],
)
def test_options_that_contradict_or_mean_nothing_are_told(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, ["bench", "http://127.0.0.1:9", *words])
    assert isinstance(result.exception, OptionError) and str(result.exception).startswith(said)


@pytest.mark.parametrize(
    ("option", "value"), [*(("--rate", rate) for rate in ("1e308", "100001", "0", "-1")), ("--clients", "0"), ("--clients", "10001")]
)
def test_a_load_that_nobody_can_send_is_none(option: str, value: str) -> None:
    run = command("bench", "http://127.0.0.1:9", option, value)
    assert (run.returncode, run.stdout) == (2, "") and f"Invalid value for '{option}'" in run.stderr


LOAD = benching.LoadOptions(
    clients=2,
    rate=0.0,
    requests=3,
    duration=0.0,
    prompt_tokens=(10, 20),
    max_tokens=(4, 6),
    same_prefix=5,
    stream=True,
    extra={"top_p": 1},
    seed=7,
    warm_up=0,
)


def test_the_same_seed_makes_the_same_requests_and_they_share_no_more_than_their_beginning() -> None:
    first, again = (list(itertools.islice(benching.bodies("openai", LOAD, 7), 20)) for _ in range(2))
    assert first == again != list(itertools.islice(benching.bodies("openai", LOAD, 8), 20))
    prompts = [str(body["prompt"]).split() for body in first]
    assert {len(words) for words in prompts} <= set(range(10, 21)) and len({len(words) for words in prompts}) > 3
    assert len({tuple(words[:5]) for words in prompts}) == 1 and len({tuple(words[:8]) for words in prompts}) == 20
    assert {body["max_tokens"] for body in first} == {4, 5, 6} and all(body["top_p"] == 1 for body in first)


def test_usage_is_asked_for_where_the_page_has_it() -> None:
    assert "stream_options" in next(benching.bodies("openai", LOAD, 0))
    assert "stream_options" not in next(benching.bodies("together", LOAD, 0))


SETTINGS = {"clients": 2, "rate": 0.0, "seed": 7}


def made(*times: float, due: float = 0.0, error: str = "", status: int = 200) -> Trace:
    return Trace(due, times=list(times), tokens=2 * len(times), status=status, error=error, end=max(times, default=due))


def test_a_report_of_a_slow_server_is_as_wide_as_any_other() -> None:
    traces = [made(0.5, 2.5), made(1234.5, 1250.0)]
    found = Measured(url="u", page="openai", model="m", settings=SETTINGS, summary=summary(traces), traces=traces, busy=0.1)
    scales = [line for line in drawn(found, color=False).splitlines() if "ms or more" in line]
    assert [len(line) for line in scales] == [100, 100]


def test_a_report_shows_a_models_name_in_printable_characters() -> None:
    found = Measured(
        url="u",
        page="openai",
        model="m[b]\x1b]0;hi",
        settings=SETTINGS,
        summary=summary([made(0.5)]),
        traces=[made(0.5)],
        busy=0.1,
    )
    assert "model m[b]\N{REPLACEMENT CHARACTER}]0;hi:" in drawn(found, color=True)


def test_a_report_tells_failures_by_kind_and_a_load_that_was_busy_itself() -> None:
    lost = "no connection: [Errno 111] Connection refused", "status 503: full", "not ended after 5 s"
    bad = [made(error=lost[0], status=0), made(error=lost[1], status=503), made(error=lost[1], status=503), made(1.0, error=lost[2])]
    traces = [made(0.5, 1.5, 1.75), made(2.5, due=0.25), *bad]
    found = Measured(url="u", page="openai", model="m", settings=SETTINGS, summary=summary(traces), traces=traces, busy=0.9)
    text = drawn(found, color=False)
    assert "4 requests failed: status 503 2, no connection 1, timed out 1" in text
    assert "90% of a core" in text
    assert found.rates == [2, 4, 2]
    assert "4 requests failed" in svg(found).replace("&#160;", " ")
