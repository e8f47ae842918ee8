"""``quintet eval``: the server that it starts, what lm-eval is told, and what becomes of its results.

A program stands in for lm-eval here, which asks what lm-eval asks; lm-eval itself is in ``tests/clients/eval_command.py``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_serve_command import PATIENCE_S, served
from tests.reference.tiny_model import TinySpec, write_tiny
from tests.support.command import command

from quintet.cli.asking import Server, parse_url, require_model
from quintet.cli.console import OptionError
from quintet.cli.evaluate import EvalOptions, arguments
from quintet.conformance.item import Call, Reply

HARNESS = """#!{python}
import json, os, sys, time, urllib.request
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
about = dict(pair.split("=") for pair in options["--model_args"].split(","))
body = {{"model": about["model"], "prompt": [84, 104, 101], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}}
headers = {{"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}
request = urllib.request.Request(about["base_url"], json.dumps(body).encode(), headers)
with urllib.request.urlopen(request) as reply:
    answer = json.load(reply)
where = about["base_url"].replace("completions", "tokenizer_info")
tokenizer = json.load(urllib.request.urlopen(urllib.request.Request(where, headers=headers)))
if "HARNESS_WAITS" in os.environ:
    print(os.getpid(), about["base_url"], flush=True)
    time.sleep(600)
print("| the table |")
folder = os.path.join(options["--output_path"], "a__model")
os.makedirs(folder)
with open(os.path.join(folder, "results_2026.json"), "w") as file:
    json.dump({{"argv": sys.argv[1:], "about": about, "answer": answer, "eos": tokenizer["eos_token"]}}, file)
sys.exit(int(os.environ.get("HARNESS_ENDS", "0")))
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A ``PATH`` with the stand-in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "lm_eval").write_text(HARNESS.format(python=sys.executable))
    (folder / "lm_eval").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def evaluate(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quintet", "eval", *words]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=PATIENCE_S, start_new_session=True
    )


def results(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_a_server_is_started_asked_and_ended_and_the_results_are_kept(path: str, tmp_path: Path) -> None:
    """The settings of a server for others are not this one's."""
    out = tmp_path / "out.json"
    words = "--limit", "5", "--num-fewshot", "2", "--include-path", str(tmp_path), "--concurrent", "3", "-o", str(out)
    run = evaluate("toy", "one", "two", *words, PATH=path, QUINTET_API_KEY="sk-others", QUINTET_PORT="1")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "| the table |\n"
    found = results(out)
    about = found["about"]
    url = about.pop("base_url")
    assert url.startswith("http://127.0.0.1:")
    assert about == {"model": "toy", "num_concurrent": "3", "tokenizer_backend": "remote", "max_length": "4096"}
    assert found["argv"][:3] == ["run", "--model", "local-completions"]
    told = dict(zip(found["argv"][1::2], found["argv"][2::2], strict=True))
    assert (told["--tasks"], told["--limit"], told["--num_fewshot"], told["--include_path"]) == ("one,two", "5", "2", str(tmp_path))
    logprobs = found["answer"]["choices"][0]["logprobs"]["token_logprobs"]
    assert logprobs[0] is None and len(logprobs) == 4
    assert "eos" in found, "the tokenizer was asked for too"
    require_nobody(url)


def require_nobody(url: str) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(url.rpartition("/v1")[0].rpartition(":")[2])))


def test_a_service_manager_s_signal_ends_lm_eval_and_the_server_too(path: str) -> None:
    words = [sys.executable, "-m", "quintet", "eval", "toy", "task"]
    environment = {**os.environ, "PATH": path, "HARNESS_WAITS": "1"}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
        assert run.stdout is not None
        number, url = run.stdout.readline().split()
        run.terminate()
        assert run.wait(PATIENCE_S) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(number), 0)
    require_nobody(url)


def test_settings_of_other_servers_are_not_of_this_one_but_how_a_model_computes_is(path: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    others = {
        "DIALECT": "fireworks",
        "UDS_MODE": "660",
        "PIN": "other",
        "ALIAS": "a=other",
        "LEDGER": str(tmp_path / "ledger"),
        "STRICT": "1",
    }
    variables = {f"QUINTET_{name}": value for name, value in others.items()}
    run = evaluate("smollm2", "one", "-o", str(out), PATH=path, QUINTET_CTX_SIZE="512", **variables)
    assert (run.returncode, run.stderr) == (0, "")
    assert results(out)["about"]["max_length"] == "512"
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize("spared", ["", "other.example", "*"])
def test_a_proxy_is_not_asked_for_the_server_that_is_started(path: str, spared: str) -> None:
    proxies = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1", "NO_PROXY": spared}
    run = evaluate("toy", "one", "-o", "/dev/stdout", PATH=path, **proxies)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_server_of_its_own_fetches_nothing_where_the_environment_says_so(path: str) -> None:
    words, nobody = ("hf:nobody/nothing", "one"), "http://127.0.0.1:9"
    nowhere = {"HF_ENDPOINT": nobody, "PIP_INDEX_URL": nobody, "PATH": path}
    told = evaluate(*words, "--offline", **nowhere)
    assert told.returncode == 1 and "nothing" in told.stderr
    assert evaluate(*words, QUINTET_OFFLINE="1", **nowhere).stderr == told.stderr


def test_a_server_that_runs_is_asked_by_its_url_with_its_key(path: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with served("--toy", "--api-key", "key-of-the-evaluation", "--alias", "mine=toy") as one:
        words = "--url", f"{one.url}/v1", "--tokenizer", "gpt2", "-o", str(out)
        run = evaluate("mine", "task", *words, PATH=path, QUINTET_CLIENT_KEY="key-of-the-evaluation")
        assert (run.returncode, run.stderr) == (0, "")
        about = results(out)["about"]
        assert about["base_url"] == f"{one.url}/v1/completions"
        assert (about["model"], about["tokenizer_backend"], about["tokenizer"]) == ("mine", "huggingface", "gpt2")
        assert one.post({"prompt": "x", "max_tokens": 1}, Authorization="Bearer key-of-the-evaluation")[0] == 200, "it serves on"


def test_tokens_that_are_told_with_a_key_only_are_not_asked_of_lm_eval(path: str) -> None:
    """Its remote tokenizer sends none: each of its questions would be refused, after minutes of tries."""
    with served("--toy", "--api-key", "key-of-the-evaluation") as one:
        run = evaluate("toy", "task", "--url", f"{one.url}/v1", PATH=path, QUINTET_CLIENT_KEY="key-of-the-evaluation")
        said = f"error: {one.url}/v1 tells tokens with a key only, which lm-eval's tokenizer does not send: give --tokenizer.\n"
        assert (run.returncode, run.stdout, run.stderr) == (1, "", said)


def test_a_server_that_is_not_there_or_lacks_the_model_is_told_before_lm_eval_runs(path: str) -> None:
    run = evaluate("toy", "task", "--url", "http://127.0.0.1:9/v1", PATH=path)
    said = "error: http://127.0.0.1:9/v1: the connection failed: Connection refused.\n"
    assert (run.returncode, run.stdout, run.stderr) == (1, "", said)
    with served("--toy", "--api-key", "key-of-the-evaluation") as one:
        url = f"{one.url}/v1"
        run = evaluate("org/none", "task", "--url", url, PATH=path, QUINTET_CLIENT_KEY="key-of-the-evaluation")
        assert (run.returncode, run.stdout, run.stderr) == (1, "", f"error: {url} has no model 'org/none' (status 404).\n")
        run = evaluate("toy", "task", "--url", url, PATH=path)
        said = f"error: {url}/models is not shown without a key (status 401); give one with --key.\n"
        assert (run.returncode, run.stdout, run.stderr) == (1, "", said)


@pytest.mark.parametrize(("body", "asked"), [(b'{"data": []}', 2), (b'[{"id": "it"}, {}]', 1), (b'{"data": [7]}', 1), (b"<html>", 1)])
def test_what_is_no_list_of_models_says_nothing_of_one(body: bytes, asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without such a list was always evaluated; one with an empty list is asked for the model itself."""
    paths = list[str]()

    def send(_: Server, call: Call) -> Reply:
        paths.append(call.path)
        return Reply(200, {}, body)

    monkeypatch.setattr(Server, "send", send)
    require_model(Server(parse_url("http://x/v1"), "", 1.0), "it")
    assert paths == ["/v1/models", "/v1/models/it"][:asked]


def test_the_exit_status_is_lm_evals_and_failed_results_are_not_kept(path: str, tmp_path: Path) -> None:
    run = evaluate("toy", "task", "-o", str(tmp_path / "out.json"), PATH=path, HARNESS_ENDS="3")
    assert run.returncode == 3
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(("output", "said"), [("no/out.json", "no is no folder."), ("bin", "bin is a folder.")])
def test_a_place_where_no_results_can_be_written_is_told_before_anything_is_evaluated(
    output: str, said: str, path: str, tmp_path: Path
) -> None:
    run = evaluate("toy", "task", "-o", str(tmp_path / output), PATH=path)
    assert (run.returncode, run.stdout, run.stderr) == (1, "", f"error: --output: {tmp_path}/{said}\n")


def test_results_go_into_a_pipe(path: str) -> None:
    run = evaluate("toy", "task", "-o", "/dev/stdout", PATH=path)
    table, _, told = run.stdout.partition("\n")
    assert (run.returncode, run.stderr, table) == (0, "", "| the table |")
    assert json.loads(told)["about"]["model"] == "toy"


def test_results_that_cannot_be_written_in_the_end_are_kept_and_it_is_told_where(path: str, tmp_path: Path) -> None:
    run = evaluate("toy", "task", "-o", "/dev/full", PATH=path, TMPDIR=str(tmp_path))
    found = re.fullmatch(r"error: --output: /dev/full cannot be written: No space left on device; the results are in (.*)\.\n", run.stderr)
    assert run.returncode == 1 and found is not None, run.stderr
    assert results(Path(found[1]))["about"]["model"] == "toy"


def test_without_lm_eval_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    run = command("eval", "toy", "task")
    assert (run.returncode, run.stdout) == (1, "")
    assert "pip install 'quintet[eval]'" in run.stderr and run.stderr.count("\n") == 1


def test_a_model_that_cannot_be_served_is_told_by_the_server(path: str) -> None:
    run = evaluate("./no-such.gguf", "task", PATH=path)
    assert run.returncode == 1
    assert "no-such.gguf" in run.stderr and run.stderr.endswith("error: the server for the evaluation did not come up.\n")


def beginning(path: Path) -> Path:
    """A model before whose texts a BOS is put."""
    flag = b"tokenizer.ggml.add_bos_token" + struct.pack("<I", 7)
    write_tiny(path, TinySpec("plain"))
    path.write_bytes(path.read_bytes().replace(flag + b"\0", flag + b"\1"))
    return path


def test_of_a_model_whose_texts_begin_with_a_bos_it_is_told_that_lm_eval_leaves_it_out(path: str, tmp_path: Path) -> None:
    """Gemma's scores are close to chance without it. Of lm-eval's tokenizers Hugging Face's alone can be told to put it there."""
    model, out = beginning(tmp_path / "begins.gguf"), tmp_path / "out.json"
    run = evaluate(str(model), "task", "-o", str(out), PATH=path)
    assert run.returncode == 0
    assert (
        "note: texts for begins begin with a BOS, which lm-eval leaves out without --tokenizer: scores are those without it.\n"
        in run.stderr
    )
    assert "add_bos_token" not in results(out)["about"]
    run = evaluate(str(model), "task", "--tokenizer", "org/its-own", "-o", str(out), PATH=path)
    assert run.returncode == 0 and "note: texts" not in run.stderr
    assert results(out)["about"]["add_bos_token"] == "True"


def test_another_models_tokens_are_not_taken_for_those_of_the_model_that_is_asked(path: str, tmp_path: Path) -> None:
    """lm-eval asks for tokens without a model's name, and that is the first's: all scores would be of other texts."""
    other = write_tiny(tmp_path / "other.gguf", TinySpec("other"))
    with served("toy", f"other={other}") as one:
        url = f"{one.url}/v1"
        run = evaluate("other", "task", "--url", url, PATH=path)
        said = "error: 'other' has other tokens than the server's first model, which are those that lm-eval asks for: give --tokenizer.\n"
        assert (run.returncode, run.stdout, run.stderr) == (1, "", said)
        assert evaluate("toy", "task", "--url", url, PATH=path).returncode == 0
        assert evaluate("other", "task", "--url", url, "--tokenizer", "org/its-own", PATH=path).returncode == 0


OPTIONS = EvalOptions(
    model="a",
    tasks=("task",),
    url="http://x",
    key="",
    tokenizer="",
    concurrent=1,
    limit=None,
    fewshot=None,
    include=None,
    output=None,
    offline=False,
)


@pytest.mark.parametrize(("limit", "told"), [(1234567.0, "1234567"), (0.1234567, "0.1234567"), (5.0, "5")])
def test_every_digit_of_a_limit_is_told(limit: float, told: str) -> None:
    options = replace(OPTIONS, limit=limit)
    words = arguments(options, "a", "http://x/v1/completions", None, begins=False)
    assert words[words.index("--limit") + 1] == told


def test_a_name_that_would_be_two_arguments_is_refused() -> None:
    options = replace(OPTIONS, model="a,b")
    with pytest.raises(OptionError, match="no name with a comma or an equals sign, got 'a,b'"):
        arguments(options, "a,b", "http://x/v1/completions", None, begins=False)
