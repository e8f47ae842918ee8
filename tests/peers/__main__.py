"""``python -m tests.peers [--vllm DIR] [--llama DIR] [--sglang DIR] [vllm|llama|sglang ...]``: other servers' own tests against ours.

Their files come from the source archives of releases on PyPI, SGLang's, which are in none, one by one from its repository (``--vllm``,
``--llama`` and ``--sglang`` name a folder that holds such a tree instead). They are checked by hash and never committed; what stands in for
their launchers is ours (``plugin.py``). ``expected.toml`` says of every test that fails why it does. Exit code 1 if one fails that is not
listed, if one that is listed passes, or if one that is listed is not there any more.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import venv
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

from tests.clients.__main__ import served

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "peers"
NEEDS = ("pytest", "pytest-asyncio", "openai", "requests", "regex", "filelock", "numpy")
MOST_S = 1200
CHANCE = "By chance: "
"""How a reason begins where a test fails at some times and passes at others: nothing follows from either."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A release's source archive.

    Args:
        inside: where the tree of interest is in it.
    """

    url: str
    sha256: str
    inside: str


@dataclass(frozen=True, slots=True)
class Files:
    """Files of a repository at one commit.

    Args:
        url: of the tree's root.
        sha256: of each file, by its path in the tree.
    """

    url: str
    sha256: dict[str, str]


@dataclass(frozen=True, slots=True)
class Peer:
    """A server whose tests are run.

    Args:
        source: where its sources are had from.
        root: of that tree, the folder that its tests are run in.
        files: of its tests, those that speak the routes that we have.
        models: names of the models that they ask for.
        served: what is served under these names.
    """

    name: str
    source: Archive | Files
    root: str
    files: tuple[str, ...]
    models: tuple[str, ...]
    served: tuple[str, ...]


PYPI = "https://files.pythonhosted.org/packages"
PEERS = (
    Peer(
        "vllm",
        Archive(
            f"{PYPI}/f7/25/aa5684e9c59d6fc75f78926b7f15e8d9adc7de2d9e6e7575b80776ad8169/vllm-0.33.0.tar.gz",
            "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
            "vllm-0.33.0",
        ),
        ".",
        (
            *("tests/entrypoints/openai/completion/test_completion.py", "tests/entrypoints/openai/test_return_token_ids.py"),
            *("tests/entrypoints/openai/test_return_tokens_as_ids.py", "tests/entrypoints/openai/test_chunked_prompt.py"),
            *("tests/entrypoints/openai/completion/test_prompt_validation.py", "tests/entrypoints/serve/instrumentator/test_basic.py"),
            "tests/entrypoints/serve/tokenize/test_tokenization.py",
        ),
        (
            *("Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-1.5B-Instruct", "HuggingFaceH4/zephyr-7b-beta"),
            *("openai-community/gpt2", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ),
        ("smollm2", "--offline"),
    ),
    Peer(
        "llama",
        Archive(
            f"{PYPI}/ec/e9/e7de2b0463ea3ffbf0ede6cb21b58c1258a8f6521aae45ca773a59fe7cf3/llama_cpp_python-0.3.36.tar.gz",
            "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
            "llama_cpp_python-0.3.36/vendor/llama.cpp",
        ),
        "tools/server/tests",
        ("unit/test_completion.py", "unit/test_infill.py", "unit/test_tokenize.py", "unit/test_basic.py", "unit/test_ignore_eos.py"),
        ("tinyllama-2", "davinci-002"),
        ("--toy",),  # they generate to the end of the context, and look for words of a model that is not ours in any case
    ),
    Peer(
        "sglang",
        Files(
            "https://raw.githubusercontent.com/sgl-project/sglang/b0d25e72c401f37b55d689ddbf05b8c583afe854",  # 0.5.2
            {
                "test/srt/openai_server/basic/test_openai_server.py": "1983489230ba3c7f10878d4e477c8f26b0ff5c855c23bea889b2de1408554dd4",
                "test/srt/openai_server/validation/test_matched_stop.py": (
                    "623c070be045d28fc018e8b79314fde4675b15e46d6d91575eef44246604fab5"
                ),
                "test/srt/test_fim_completion.py": "555b956a52a9fbd95c493817c8601c53721f17659034a8b6adafe6628586f179",
            },
        ),
        "test/srt",
        ("openai_server/basic/test_openai_server.py", "openai_server/validation/test_matched_stop.py", "test_fim_completion.py"),
        ("meta-llama/Llama-3.2-1B-Instruct",),
        ("smollm2", "--offline"),
    ),
)


class UnavailableError(Exception):
    """A peer's sources cannot be had."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peers")
    for peer in PEERS:
        parser.add_argument(f"--{peer.name}", type=Path, metavar="DIR", help="a tree of its sources, instead of its release's archive")
    parser.add_argument("names", nargs="*", choices=[[], *(peer.name for peer in PEERS)], help="default: all")
    given = parser.parse_args()
    chosen = [peer for peer in PEERS if not given.names or peer.name in given.names]
    faults = sum(run(peer, getattr(given, peer.name)) for peer in chosen)
    print(f"==== {faults} unexpected ====")
    return int(faults > 0)


def run(peer: Peer, tree: Path | None) -> int:
    """Run a peer's tests; says what is unexpected, and how many."""
    try:
        folder = copied(peer, tree or fetched(peer))
    except UnavailableError as error:
        print(f"---- {peer.name}: {error}")
        return 1
    report = BUILD / f"{peer.name}.xml"
    report.unlink(missing_ok=True)
    names = [word for name in peer.models for word in ("--served-model-name", name)]
    with served(*peer.served, *names) as url:
        env = {**os.environ, "QUINTET_PEER": peer.name, "QUINTET_URL": url, "PYTHONPATH": str(HERE), "DEBUG_EXTERNAL": "1"}
        command = [str(python()), "-m", "pytest", "-c", str(HERE / "pytest.ini"), "--rootdir", str(folder), "-p", "plugin", "-q"]
        command += ["--tb=line", "--no-header", f"--junitxml={report}", *peer.files]
        done = subprocess.run(command, cwd=folder, env={**env, "PORT": str(urlsplit(url).port)}, timeout=MOST_S, check=False)
    if not report.exists():
        print(f"{peer.name}: pytest ended with {done.returncode}")
        return 1
    return judged(peer, outcomes(report))


def judged(peer: Peer, found: dict[str, str]) -> int:
    """Compare what came with what is expected.

    Args:
        found: of each test ``passed``, ``skipped``, or why it failed.
    """
    expected: dict[str, str] = tomllib.loads((HERE / "expected.toml").read_text(encoding="utf-8"))[peer.name]
    faults, listed = 0, set[str]()
    for test, outcome in found.items():
        patterns = {pattern for pattern in expected if fnmatch.fnmatchcase(test, pattern.replace("[", "[[]"))}
        listed |= patterns
        if any(expected[pattern].startswith(CHANCE) for pattern in patterns):
            continue
        if (outcome in ("passed", "skipped")) == bool(patterns):
            faults += 1
            print(f"{peer.name}: {test}: {'passes, and is listed as one that fails' if patterns else outcome}")
    for pattern in sorted(expected.keys() - listed):
        faults += 1
        print(f"{peer.name}: {pattern}: is listed, and there is no such test")
    passed = sum(outcome == "passed" for outcome in found.values())
    skipped = sum(outcome == "skipped" for outcome in found.values())
    print(f"---- {peer.name}: {passed} passed, {skipped} skipped, {len(found) - passed - skipped} failed, {faults} unexpected")
    return faults


def outcomes(report: Path) -> dict[str, str]:
    """Of each test, named ``module::name[parameters]``."""
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        bad = next((child for child in case if child.tag in ("failure", "error")), None)
        skipped = any(child.tag == "skipped" for child in case)
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        found[name] = (bad.get("message") or bad.tag)[:300] if bad is not None else "skipped" if skipped else "passed"
    return found


def copied(peer: Peer, tree: Path) -> Path:
    """A folder with its tests and nothing else of the tree, whose packages are as they were."""
    source, target = tree / peer.root, BUILD / peer.name
    shutil.rmtree(target, ignore_errors=True)
    for file in (*peer.files, *(("conftest.py", "utils.py") if peer.name == "llama" else ())):
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target / file)
        for parent in Path(file).parents[:-1]:
            if peer.name == "vllm":
                (target / parent / "__init__.py").touch()
    return target


def fetched(peer: Peer) -> Path:
    """Its sources, had once.

    Raises:
        UnavailableError: they cannot be had, or are not what they were.
    """
    target = BUILD / f"{peer.name}-source"
    if isinstance(peer.source, Files):
        for path, sha256 in peer.source.sha256.items():
            download(peer, f"{peer.source.url}/{path}", sha256, target / path)
        return target
    archive = BUILD / f"{peer.name}.tar.gz"
    if not target.exists():
        download(peer, peer.source.url, peer.source.sha256, archive)
        with tarfile.open(archive) as packed:
            start = f"{peer.source.inside}/{peer.root}".rstrip("./")
            packed.extractall(target, [one for one in packed.getmembers() if one.name.startswith(start)], filter="data")
    return target / peer.source.inside


def download(peer: Peer, url: str, sha256: str, target: Path) -> None:
    """Fetch a file, unless it is there.

    Raises:
        UnavailableError: it cannot be had, or is not what it was.
    """
    if target.exists() and hashed(target) == sha256:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, target.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except OSError as error:
        target.unlink(missing_ok=True)
        raise UnavailableError(f"{url} cannot be had ({error}); give a tree of its sources with --{peer.name} DIR") from None
    if hashed(target) != sha256:
        raise UnavailableError(f"{target} is not what {url} was")


def hashed(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def python() -> Path:
    """The Python that runs them, in an environment of its own."""
    made = BUILD / "venv" / "bin" / "python"
    if not made.exists():
        venv.create(made.parents[1], with_pip=True)
        subprocess.run([str(made), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *NEEDS], check=True)
    return made


if __name__ == "__main__":
    sys.exit(main())
