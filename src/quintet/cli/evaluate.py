"""``quintet eval``: lm-eval's tasks on a model, by a server that is started for it, or on one that runs already."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from quintet.cli import vllm
from quintet.cli.asking import Server, first_model, models_in, parse_url, require_model
from quintet.cli.configuration import OTHER_VARIABLES, PREFIX
from quintet.cli.console import OptionError
from quintet.conformance.item import Call
from quintet.errors import QuintetError, shorten

HARNESS = "lm_eval"
_LACKING = "quintet eval runs lm-eval, which is not here: pip install 'quintet[eval]', or have its command lm_eval on the path."
# Settings that say how a model computes. All others are of servers that are for others to reach, or for other models.
_KEPT = {"engine", "offline", "think_tags", *vllm.NATIVE_ONLY, *vllm.TOYS_OWN, *vllm.VLLM_ONLY}
_KEPT -= {"draft", "mmproj", "prefix_cache_dir", "prefix_cache_size"}
_HOST = "127.0.0.1"
_END_S = 10.0
_PROBE = (
    "Another thing in there, and over 1234 years ago:\n\tna\u00efve:  f(x)['a'] # \U0001f600 \u65e5\u672c\u8a9e \u043d\u0435\u0431\u043e"
)
"""A text that different tokenizers cut differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """What to evaluate, and how.

    Args:
        model: a reference; with ``url``, the model's name there, or empty for the first.
        url: of a server; empty = one is started.
        tokenizer: a Hugging Face name, where the server has no routes for tokens; empty = the server's own.
        limit, fewshot: lm-eval's; ``None`` = as the task has it.
        include: a folder of tasks; ``None`` = none beside lm-eval's.
        output: a file for the results as JSON.
    """

    model: str
    tasks: tuple[str, ...]
    url: str
    key: str
    tokenizer: str
    concurrent: int
    limit: float | None
    fewshot: int | None
    include: Path | None
    output: Path | None
    offline: bool


class EvaluationError(QuintetError):
    """lm-eval, or the server that was started for it, failed."""


def evaluate(options: EvalOptions) -> int:
    """Run the tasks; lm-eval prints its table. Its exit code.

    Raises:
        SystemExit: at SIGTERM, when lm-eval and the server have ended too.
        OptionError: lm-eval is not here, an option is malformed, or the results cannot be written where they are wanted.
        UnusableServerError, EvaluationError: there is no server to ask, or no results.
    """
    command = harness()
    if options.output is not None:
        _require_place(options.output)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        if options.url:
            return _run(command, options, options.url)
        with served(options.model, offline=options.offline) as url:
            return _run(command, options, url)
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one does not end what ends the children, which takes seconds
    sys.exit(128 + number)


def _require_place(output: Path) -> None:
    """Before hours of evaluation.

    Raises:
        OptionError: no file can be written there.
    """
    if not output.parent.is_dir():
        raise OptionError(f"--output: {output.parent} is no folder.")
    if output.is_dir():
        raise OptionError(f"--output: {output} is a folder.")
    if not os.access(output if output.exists() else output.parent, os.W_OK):
        raise OptionError(f"--output: {output} cannot be written.")


def harness() -> list[str]:
    """lm-eval's command.

    Raises:
        OptionError: there is none.
    """
    if importlib.util.find_spec(HARNESS) is not None:
        return [sys.executable, "-m", HARNESS]
    found = shutil.which(HARNESS)
    if found is None:
        raise OptionError(_LACKING)
    return [found]


@contextmanager
def served(model: str, *, offline: bool) -> Iterator[str]:
    """The URL of a server of the model, for as long as the block runs.

    Raises:
        EvaluationError: it did not come up; why, it has said itself.
    """
    kept = {f"{PREFIX}{name.upper()}" for name in _KEPT} | OTHER_VARIABLES
    environment = {name: value for name, value in os.environ.items() if name in kept or not name.startswith(PREFIX)}
    words = ["serve", model, "--host", _HOST, "--port", "0", "--log-level", "error", *(["--offline"] if offline else [])]
    with subprocess.Popen([sys.executable, "-m", "quintet", *words], stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+/v1", process.stdout.readline())
            if found is None:
                raise EvaluationError("the server for the evaluation did not come up.")
            yield found[0]
        finally:
            _ended(process, signal.SIGINT)  # at once: nobody else waits for it


def _ended(process: subprocess.Popen[Any], number: int) -> None:
    process.send_signal(number)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _run(command: Sequence[str], options: EvalOptions, url: str) -> int:
    base = parse_url(url)
    server = Server(base, options.key, 60.0)
    model = options.model if options.url else ""
    if model:
        require_model(server, model)
    model = model or first_model(server)
    begins = _begins(server, model)
    if not options.tokenizer:
        _require_tokenizer(server, model)
    if begins and not options.tokenizer:
        note = f"note: texts for {model} begin with a BOS, which lm-eval leaves out without --tokenizer: scores are those without it."
        print(note, file=sys.stderr, flush=True)
    with TemporaryDirectory() as folder:
        words = [
            *command,
            "run",
            *arguments(options, model, f"{base.geturl()}/completions", context(server, model), begins=begins),
            "--output_path",
            folder,
        ]
        with subprocess.Popen(words, env=_environment(options)) as process:
            try:
                try:
                    code = process.wait()
                except KeyboardInterrupt:  # it has heard it too
                    process.wait()
                    raise
            except SystemExit:  # it may not have
                _ended(process, signal.SIGTERM)
                raise
        if options.output is not None and not code:
            _keep(Path(folder), options.output)
    return code


def _environment(options: EvalOptions) -> dict[str, str]:
    """lm-eval's, whose tokenizer asks by ``requests``: that goes by a proxy also to 127.0.0.1, if it is not told which hosts are spared."""
    environment = os.environ | {"OPENAI_API_KEY": options.key or "none"}
    if not options.url:
        hosts = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
        spared = hosts if hosts == "*" else ",".join(filter(None, (hosts, _HOST)))
        environment |= {"no_proxy": spared, "NO_PROXY": spared}
    return environment


def arguments(options: EvalOptions, model: str, url: str, context: int | None, *, begins: bool) -> list[str]:
    """Of lm-eval: its client of completions sends token ids, and asks for ``echo`` and ``logprobs`` where a task compares texts.

    Args:
        begins: the model's texts begin with a BOS, which lm-eval's other engines put there unasked, and this client never does.

    Raises:
        OptionError: a name that lm-eval cannot be given.
    """
    about = {"model": model, "base_url": url, "num_concurrent": options.concurrent}
    about |= {"tokenizer_backend": "huggingface", "tokenizer": options.tokenizer} if options.tokenizer else {"tokenizer_backend": "remote"}
    about |= {"add_bos_token": True} if begins and options.tokenizer else {}
    about |= {} if context is None else {"max_length": context}
    wrong = next((value for value in about.values() if set(str(value)) & set(",=")), None)
    if wrong is not None:
        raise OptionError(f"lm-eval takes no name with a comma or an equals sign, got {shorten(wrong)}.")
    words = ["--model", "local-completions", "--model_args", ",".join(f"{name}={value}" for name, value in about.items())]
    words += ["--tasks", ",".join(options.tasks)]
    words += [] if options.limit is None else ["--limit", str(options.limit).removesuffix(".0")]
    words += [] if options.fewshot is None else ["--num_fewshot", str(options.fewshot)]
    return words + ([] if options.include is None else ["--include_path", str(options.include)])


def context(server: Server, model: str) -> int | None:
    """The most tokens of a text, as the list of models tells; ``None`` = it does not, and lm-eval cuts at its own bound."""
    reply = server.send(Call("GET", f"{server.base.path}/models"))
    with suppress(ValueError, RecursionError, KeyError, TypeError):
        listed = models_in(reply.body)
        return next((int(one["max_model_len"]) for one in listed if one.get("id") == model and one.get("max_model_len")), None)
    return None


def _begins(server: Server, model: str) -> bool:
    """Whether a BOS is put before a text for this model; not, where the server has no route to tell."""
    whole, plain = (_tokens(server, {"model": model, "add_special_tokens": special}) for special in (True, False))
    return bool(whole and plain and whole != plain and plain in (whole[1:], whole[1:-1]))


def _require_tokenizer(server: Server, model: str) -> None:
    """lm-eval's remote tokenizer names no model, so it is that of the first. A key it takes from its command line only, in sight of all.

    Raises:
        OptionError: which is another, or is told to whoever has a key.
    """
    own, first = _tokens(server, {"model": model}), _tokens(server, {})
    if server.key and first and not _tokens(server, {}, keyed=False):
        url = server.base.geturl()
        raise OptionError(f"{url} tells tokens with a key only, which lm-eval's tokenizer does not send: give --tokenizer.")
    if own and first and own != first:
        raise OptionError(
            f"{shorten(model)} has other tokens than the server's first model, which are those that lm-eval asks for: give --tokenizer."
        )


def _tokens(server: Server, about: dict[str, object], *, keyed: bool = True) -> list[Any] | None:
    """Ids of a text; ``None`` = the server tells none."""
    body = json.dumps({"prompt": _PROBE, **about}).encode()
    path = f"{server.base.path.removesuffix('/v1')}/tokenize"
    reply = server.send(Call("POST", path, (("content-type", "application/json"),), body, keyed=keyed))
    with suppress(ValueError, RecursionError, KeyError, TypeError):
        found = json.loads(reply.body)["tokens"]
        return found if isinstance(found, list) else None
    return None


def _keep(folder: Path, output: Path) -> None:
    """lm-eval names its file by the time, in a folder that it names by the model.

    Raises:
        EvaluationError: there is none.
        OptionError: it cannot be written; it is kept where the message says.
    """
    found = sorted(folder.rglob("results*.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise EvaluationError("lm-eval has written no results.")
    try:
        with found[-1].open("rb") as results, output.open("wb") as file:  # which may be a pipe
            shutil.copyfileobj(results, file)
    except OSError as error:
        kept = found[-1].rename(Path(mkdtemp(prefix="quintet-eval-"), found[-1].name))
        raise OptionError(f"--output: {output} cannot be written: {error.strerror}; the results are in {kept}.") from None
