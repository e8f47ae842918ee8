"""What the options of ``quintet serve`` do, seen from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.test_serve_command import PATIENCE_S, served


def test_dialect_strictness_key_file_and_body_limit_from_options(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# Ada\nsk-one\n")
    keys.chmod(0o600)
    body = {"prompt": "x", "max_tokens": 1, "model": "toy"}
    with served("--toy", "--dialect", "together", "--strict", "--api-key-file", str(keys), "--max-body", "1KiB") as one:
        assert "1 API key" in one.banner
        assert one.post(body)[0] == 401
        status, answer = one.post(body, Authorization="Bearer sk-one")
        assert (status, json.loads(answer)["object"]) == (200, "text.completion")
        assert one.post({**body, "nonsense": 1}, Authorization="Bearer sk-one")[0] == 400
        assert one.post({**body, "prompt": "x" * 2000}, Authorization="Bearer sk-one")[0] == 413
        _, err = one.end(signal.SIGTERM)
    statuses = [json.loads(line)["status"] for line in err.splitlines() if line.startswith("{")]
    assert sorted(statuses) == [200, 400, 401, 413], "each has its line; one may be written when the next request is there"
    assert "sk-one" not in err


@pytest.mark.fault("D14")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dialect", "klingon"], "--dialect must be one of openai, fireworks, together, cerebras, novita, auto"),
        (["--api-key-file", "/nowhere/keys"], "/nowhere/keys: No such file"),
        (["--max-body", "0"], "--max-body must be a number above 0"),
        (["--think-tags", "<think>"], "--think-tags must be a start and an end tag with a comma between them"),
        (["--api-key-file", "/dev/null", "--no-api-key"], "/dev/null is not a file"),
        (["--ledger", "/nowhere/usage"], "--ledger /nowhere/usage: there is no folder /nowhere; make it first."),
        (["--batch-dir", __file__], f"--batch-dir {__file__} is not a folder."),
    ],
)
def test_options_that_cannot_be_met_end_it_with_one_line(words: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quintet", "serve", "--toy", "--port", "0", *words], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert said in done.stderr
