"""vLLM as a replica on a real Ray: chosen, shared, killed and started again."""

from __future__ import annotations

import os
import signal
from collections import Counter
from threading import Thread

from tests.ray.cluster import Cluster, cluster, until
from tests.support.processes import command, family
from tests.vllm.models import folder
from tests.vllm.serving import EAGER, SIZES


def children(of: Cluster) -> list[int]:
    """Processes of ours around vLLM."""
    return [one for one in family(of.process.pid) if b"quintet.backends.vllm.child" in command(one)]


def test_two_replicas_answer_alike_and_one_that_dies_costs_what_ran_there() -> None:
    sizes = (*SIZES, *EAGER)
    asked = [{"prompt": f"{number} once upon a time", "max_tokens": 480, "ignore_eos": True, "seed": number} for number in range(40)]
    with cluster(f"llama={folder('llama')}", "--replicas", "2", sizes=sizes) as server:
        texts = {server.complete(prompt="The sky is", max_tokens=8, seed=1).json()["choices"][0]["text"] for _ in range(6)}
        assert len(texts) == 1
        before, generated = children(server), server.metric("vllm:generation_tokens_total")
        assert len(before) == 2

        def die() -> None:
            until(lambda: server.metric("vllm:generation_tokens_total") > generated + 500)  # of 19,000 in all; thousands a second
            os.kill(before[0], signal.SIGKILL)

        killer = Thread(target=die)
        killer.start()
        ends = Counter(server.all_at_once(asked))
        killer.join()
        assert ends["whole"] + ends["error"] == len(asked)
        assert 1 <= ends["error"] <= 30  # of about half of them, by load, and the other replica's are whole
        until(lambda: server.metric("quintet:replicas") == 2)
        assert before[0] not in children(server)
        assert server.all_at_once(asked[:4]) == ["whole"] * 4
