"""What a seed decides, and what the fingerprint stands for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.test_serve_command import Served, served
from tests.reference.tiny_model import TinySpec, write_tiny


def said(one: Served, **more: object) -> tuple[str, str]:
    """Text and fingerprint."""
    status, body = one.post({"prompt": "The sky is", "max_tokens": 24, "temperature": 1.0, "ignore_eos": True, **more})
    assert status == 200, body
    answer = json.loads(body)
    return answer["choices"][0]["text"], answer["system_fingerprint"]


@pytest.mark.fault("H06")
def test_another_seed_is_another_text_and_none_is_another_each_time() -> None:
    seeds = (0, 1, 7, 2**63, 2**64 - 1)
    with served("--toy", "--log-level", "warning") as one:
        texts = [said(one, seed=seed)[0] for seed in seeds]
        again = [said(one, seed=seed)[0] for seed in (0, 1, 7, -(2**63), -1)]
        unseeded = [said(one, **seed)[0] for seed in ({}, {}, {"seed": None}, {"seed": None})]
    assert len(set(texts)) == len(seeds)
    assert again == texts, "a seed counts modulo 2^64"
    assert len({*unseeded, *texts}) == len(unseeded) + len(texts)


@pytest.mark.fault("H06", "H04")
def test_the_fingerprint_is_the_models_and_with_a_seed_stands_for_the_bytes(tmp_path: Path) -> None:
    """It and the text are the same after a restart, under another name and with other threads, and other weights have another."""
    path = write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny"))
    copied = tmp_path / "copy.gguf"
    copied.write_bytes(path.read_bytes())
    other = write_tiny(tmp_path / "other.gguf", TinySpec("tiny", seed=5))
    found = []
    for words in ((str(path), "--threads", "1"), (str(copied), "--threads", "2"), (str(other),)):
        with served(*words, "--log-level", "warning") as one:
            found.append(said(one, seed=3))
    assert found[0] == found[1]
    assert found[2][1] != found[0][1]
