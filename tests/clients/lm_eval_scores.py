"""lm-eval's ``local-completions`` on the bundled model: its scores are the model's own, to the last digit.

Its tokenizer is the server's (``tokenizer_backend=remote``), so requests carry token ids. The expected numbers come from
``direct_scores.py``. The tasks and their data lie in ``data/``; nothing is fetched.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager
from lm_eval.utils import RemoteTokenizer

SERVED = os.environ["QUINTET_SERVED"]
EXPECTED: dict[str, Any] = json.loads(Path(os.environ["QUINTET_DIRECT_SCORES"]).read_text())
TASKS = ("quintet_facts", "quintet_endings")
PREFIXES = ("/v1", "/openai/v1", "/fireworks/inference/v1", "/cerebras/v1")


@cache
def evaluated(prefix: str = "/v1", batch: int = 1, concurrent: int = 1, tokenizer: str = "remote") -> dict[str, Any]:
    """lm-eval's results and samples of the multiple-choice tasks."""
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": "smollm2",
            "base_url": f"{SERVED}{prefix}/completions",
            "tokenizer_backend": tokenizer,
            "num_concurrent": concurrent,
        },
        batch_size=batch,
        tasks=list(TASKS),
        task_manager=TaskManager(include_path="data", include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    assert isinstance(found, dict)
    return found


def scores(found: dict[str, Any], task: str) -> list[list[list[Any]]]:
    """Per document and choice: the log-likelihood and whether it was greedy."""
    samples = sorted(found["samples"][task], key=lambda sample: sample["doc_id"])
    return [[[float(value), greedy in (True, "True")] for ((value, greedy),) in sample["resps"]] for sample in samples]


@pytest.mark.parametrize("task", TASKS)
def test_scores_equal_the_models_own_to_the_last_digit(task: str) -> None:
    assert scores(evaluated(), task) == EXPECTED["loglikelihood"][task]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("batch", "concurrent"), [(7, 1), (1, 6), (3, 2)])
def test_batches_and_concurrency_do_not_change_a_digit(task: str, batch: int, concurrent: int) -> None:
    assert scores(evaluated(batch=batch, concurrent=concurrent), task) == EXPECTED["loglikelihood"][task]


@pytest.mark.parametrize("task", TASKS)
def test_accuracy_is_that_of_the_scores(task: str) -> None:
    expected = EXPECTED["loglikelihood"][task]
    answers = [sample["target"] for sample in sorted(evaluated()["samples"][task], key=lambda sample: sample["doc_id"])]
    best = [max(range(len(choices)), key=lambda at: choices[at][0]) for choices in expected]
    right = [int(answer) == at for answer, at in zip(answers, best, strict=True)]
    assert evaluated()["results"][task]["acc,none"] == pytest.approx(sum(right) / len(right))
    assert sum(right) > len(right) / len(expected[0])  # better than chance, so it did read the questions


@pytest.mark.parametrize("prefix", PREFIXES[1:])
def test_the_other_dialects_with_prompt_log_probabilities_score_the_same(prefix: str) -> None:
    assert scores(evaluated(prefix), "quintet_facts") == EXPECTED["loglikelihood"]["quintet_facts"]


def test_its_own_search_for_a_tokenizer_finds_the_remote_one() -> None:
    model = LocalCompletionsAPI(model="smollm2", base_url=f"{SERVED}/v1/completions", tokenizer_backend="auto")
    assert model.tokenizer_backend == "remote"


def test_greedy_text_is_the_models_own() -> None:
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={"model": "smollm2", "base_url": f"{SERVED}/v1/completions", "tokenizer_backend": "remote"},
        batch_size=4,
        tasks=["quintet_continue"],
        task_manager=TaskManager(include_path="data", include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    assert found is not None
    samples = sorted(found["samples"]["quintet_continue"], key=lambda sample: sample["doc_id"])
    assert [sample["resps"][0][0] for sample in samples] == EXPECTED["generate"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_remote_tokenizer(prefix: str) -> None:
    tokenizer = RemoteTokenizer(f"{SERVED}{prefix}/completions")
    assert (tokenizer.eos_token, tokenizer.bos_token) == ("<|im_end|>", "<|im_start|>")
    assert tokenizer.encode(tokenizer.eos_token) == [tokenizer.eos_token_id]
    for text in ("Question: what?\nAnswer: that", " à pied — 🟣", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.batch_decode([tokenizer.encode("a b"), tokenizer.encode("c")]) == ["a b", "c"]
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert prompt.endswith("<|im_start|>assistant\n")
