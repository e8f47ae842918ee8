"""A vLLM that does not start says why, in one line, as the last of all that it writes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.processes import ENVIRONMENT
from tests.vllm.models import folder
from tests.vllm.serving import EAGER, SERVE, START_S


def started(model: Path, *options: str) -> tuple[int, list[str]]:
    """Its exit code, and the lines of its log."""
    line = [sys.executable, *SERVE, *EAGER, *options, f"llama={model}"]
    done = subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT, timeout=START_S, check=False)
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("max_num_seqs=abc", "max_num_seqs: invalid int value: 'abc'."),
        ("cpu_offload_gb=much", "cpu_offload_gb: invalid float value: 'much'."),
        ("enable_chunked_prefill=perhaps", "enable_chunked_prefill: must be true or false, got 'perhaps'."),
        ("nonsuch=1", "nonsuch: vLLM has no such option."),
    ],
)
def test_an_option_that_vllm_does_not_have_so_is_named(argument: str, told: str) -> None:
    code, lines = started(folder("llama"), "--vllm-arg", argument)
    assert (code, lines[-1]) == (1, f"error: --vllm-arg {told}")


def test_the_process_that_knows_why_is_heard_and_logs_in_the_form_of_ours() -> None:
    code, lines = started(folder("llama"), "--vllm-arg", "block_size=7", "--log-format", "json")
    assert code == 1
    assert "vllm.v1.engine.core" in {json.loads(line)["logger"] for line in lines if line.startswith('{"time"')}
    assert lines[-1].startswith("error: llama: vLLM does not load it: ValueError: No common block size for 7")


def test_weights_that_are_cut_off_are_told(tmp_path: Path) -> None:
    model = tmp_path / "llama"
    shutil.copytree(folder("llama"), model)
    weights = next(model.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1000])
    code, lines = started(model)
    assert code == 1
    assert "vLLM does not load it: " in lines[-1]
    assert "root cause" not in lines[-1]
