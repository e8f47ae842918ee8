"""``quintet cluster`` with two replicas of the bundled model over HTTP: pages, keys, prefixes, deaths."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import openai
import pytest
from tests.e2e.test_check import stated
from tests.ray.cluster import ALWAYS, START_S, Cluster, cluster, until

from bench.engines.engines import free_port

PAGES = ("openai", "fireworks", "together", "cerebras", "novita")
PREFIX_WORDS = 90
ASKED = 200


@pytest.mark.parametrize("page", PAGES)
def test_every_item_of_a_providers_page_is_as_it_says(two: Cluster, page: str) -> None:
    command = [sys.executable, "-m", "quintet", "check", f"{two.url}/{page}/v1", "--as", page, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = json.loads(done.stdout)
    departures = stated("departures", page) | stated("unserved", page)
    assert [(one["id"], one["seen"]) for one in found["items"] if one["verdict"] == "differs" and one["id"] not in departures] == []
    assert len(found["items"]) > 20


def test_an_unmodified_sdk_streams_the_same_text_from_each_replica(two: Cluster) -> None:
    client = openai.OpenAI(base_url=f"{two.url}/openai/v1", api_key="none")
    asked: Any = {"model": "smollm2", "max_tokens": 12, "seed": 7}
    texts = {client.completions.create(prompt="The sky is", **asked).choices[0].text for _ in range(4)}
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(prompt="The sky is", stream=True, **asked))
    assert texts == {streamed}


def prompts() -> list[str]:
    """200 over 10 beginnings that share nothing."""
    beginnings = [" ".join(f"{word}{number}" for word in range(PREFIX_WORDS)) for number in range(10)]
    return [f"{beginnings[number % 10]} and then {number}" for number in range(ASKED)]


def hits(of: Cluster) -> float:
    """Tokens found in prefix caches for the 200, asked 8 at a time."""
    before = of.metric("vllm:prefix_cache_hits_total")
    asked = [{"prompt": prompt, "max_tokens": 1} for prompt in prompts()]
    for begin in range(0, ASKED, 8):
        assert {*of.all_at_once(asked[begin : begin + 8])} == {"whole"}
    return of.metric("vllm:prefix_cache_hits_total") - before


def test_shared_prefixes_are_found_nearly_as_often_as_by_one_replica_that_sees_all(two: Cluster) -> None:
    with cluster("smollm2", "--replicas", "1") as one:
        best = hits(one)
    assert best > 0
    assert hits(two) >= 0.85 * best


def test_a_keys_limit_holds_over_all_replicas(tmp_path: Path) -> None:
    keys = tmp_path / "keys.db"
    made = [sys.executable, "-m", "quintet", "keys", "add", "a", "--keys", str(keys), "--requests-per-minute", "6", "--scope", "metrics"]
    key = subprocess.run(made, capture_output=True, text=True, check=True).stdout.split()[-1]
    ledger = tmp_path / "usage.db"
    with cluster("--toy", "--replicas", "2", "--keys", str(keys), "--ledger", str(ledger), key=key) as server:
        codes = [server.complete(prompt="x", max_tokens=2).status_code for _ in range(9)]
    assert Counter(codes) == {200: 6, 429: 3}
    usage = [sys.executable, "-m", "quintet", "usage", "--ledger", str(ledger), "--format", "json"]
    rows = json.loads(subprocess.run(usage, capture_output=True, text=True, check=True).stdout)
    assert sum(row["requests"] for row in rows) == 6


@pytest.mark.parametrize("what", ["worker", "replica"])
def test_a_death_under_load_costs_the_streams_that_ran_there_and_no_others(two: Cluster, what: str) -> None:
    """Each is told so by an error; all others are whole, and the replica comes back."""
    asked = [{"prompt": f"{number} once upon a time", "max_tokens": 120, "ignore_eos": True, "seed": number} for number in range(60)]
    computed = "vllm:iteration_tokens_total_sum"
    before = two.metric(computed)

    def die() -> None:
        until(lambda: two.metric(computed) > before + 1500)  # of more than 7,000 in all
        os.kill((two.workers() if what == "worker" else two.replicas())[0], signal.SIGKILL)

    killer = Thread(target=die)
    killer.start()
    ends = Counter(two.all_at_once(asked))
    killer.join()
    assert ends["whole"] + ends["error"] == 60
    assert 1 <= ends["error"] <= 45  # of about half of them, by load, and the other replica's are whole
    until(lambda: two.metric("quintet:replicas") == 2)
    assert two.all_at_once(asked[:8]) == ["whole"] * 8


def test_it_grows_to_three_and_shrinks_again_under_load_and_loses_nothing() -> None:
    scaling = ("--max-replicas", "3", "--scale-up-after", "1s", "--scale-down-after", "3s")
    with cluster("smollm2", "--replicas", "1", *scaling) as server:
        asked = [{"prompt": f"{number}", "max_tokens": 60, "ignore_eos": True, "seed": number} for number in range(150)]
        with ThreadPoolExecutor(1) as thread:
            rounds = thread.submit(lambda: [server.all_at_once(asked) for _ in range(2)])
            until(lambda: server.metric("quintet:replicas") == 3)
            assert {end for ends in rounds.result() for end in ends} == {"whole"}
            some = thread.submit(lambda: [server.all_at_once(asked[:4]) for _ in range(6)])
            until(lambda: server.metric("quintet:replicas") == 1)
            assert {end for ends in some.result() for end in ends} == {"whole"}


def test_what_cannot_be_is_told_in_one_line() -> None:
    for wrong, said in (
        (("--replicas", "3", "--max-replicas", "2"), "error: --max-replicas must be at least --replicas, 3, got 2."),
        (("--ray-address", "auto"), "error: --threads must say how many CPUs a replica has"),
        (("--ray-address", f"127.0.0.1:{free_port()}", "--threads", "1"), "error: Ray cannot be reached: nobody answers at 127.0.0.1:"),
    ):
        line = [sys.executable, "-m", "quintet", "cluster", *wrong, *ALWAYS]
        done = subprocess.run(line, capture_output=True, text=True, timeout=START_S, check=False)
        assert done.returncode == 1
        assert said in done.stderr
