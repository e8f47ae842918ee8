"""``python -m tests.clients [group ...]``: install the clients, serve, and run each client's checks in its own environment.

Environments are kept in ``build/clients`` and made again when what they need changes. Exit code 1 if a check failed or could not run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

from tests.clients.groups import GROUPS, Group
from tests.clients.scenarios import Scenarios
from tests.reference.seeing_folder import write_seeing
from tests.reference.wired_guard import FORM, write_guard
from tests.server.live import serving

from quintet.dialects.catalog import PROVIDERS
from quintet.dialects.fields import Status

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "clients"
_AT = re.compile(r" at (http://\S+)/v1,")
_GROUP_S = 900

LEAST = 170
"""Checks of the ``strict`` suite, at least."""


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0

    def fail(self, what: str, why: str) -> None:
        self.failed += 1
        print(f"{what} FAILED\n{why}", flush=True)


def main(names: list[str]) -> int:
    known = {group.name: group for group in GROUPS}
    if unknown := [name for name in names if name not in known]:
        print(f"error: unknown group {unknown[0]}; there are {', '.join(known)}.", file=sys.stderr)
        return 2
    chosen = [known[name] for name in names] or list(GROUPS)
    tally = Tally()
    logging.disable()  # the scenarios' failures are meant
    with serving(Scenarios) as port, contextlib.ExitStack() as stack:
        env = {"QUINTET_SCENARIOS": f"http://127.0.0.1:{port}"}
        toy = "--toy", "--batch-dir", stack.enter_context(tempfile.TemporaryDirectory())
        for name, what in (("TOY", toy), ("GUARDED", guarded()), ("SEEING", seeing())):
            env[f"QUINTET_{name}_URL"] = stack.enter_context(served(*what))
        env["QUINTET_REFUSED"] = json.dumps(refused())
        for dialect, fields in refused().items():
            if fields:
                print(f"not served yet, and left out of {dialect}'s examples: {', '.join(fields)}")
        if any(group.model for group in chosen):
            env |= with_model(stack)
        for group in chosen:
            check(group, env, tally)
    print(f"==== {tally.passed} passed, {tally.failed} failed ====")
    return int(tally.failed > 0)


def strict(toy: str, seeing: str) -> Tally:
    """The SDKs' strict suite on other engines.

    Args:
        toy: ``http://host:port`` of a server with any model under that name.
        seeing: the same, of a model that sees images; may be the same server.
    """
    tally = Tally()
    current = next(group for group in GROUPS if group.name == "current")
    env = {"QUINTET_TOY_URL": toy, "QUINTET_SEEING_URL": seeing, "QUINTET_REFUSED": json.dumps(refused())}
    check(replace(current, files=("strict.py",)), env, tally)
    return tally


def guarded() -> tuple[str, ...]:
    """The toy, and a moderation model for it."""
    BUILD.mkdir(parents=True, exist_ok=True)
    guard, form = write_guard(BUILD / "guard.gguf"), BUILD / "guard.toml"
    form.write_bytes(FORM)
    return "toy", f"guard={guard}", "--moderation", f"guard={form}", "--alias", "Meta-Llama/Llama-Guard-7b=guard", "--kv-cache", "32MiB"


def seeing() -> tuple[str, ...]:
    """A tiny model that sees images."""
    (BUILD / "seeing").mkdir(parents=True, exist_ok=True)
    folder = write_seeing(BUILD / "seeing")
    return str(folder), "--served-model-name", "seeing", "--image-longest-edge", "120", "--kv-cache", "32MiB", "--offline"


def check(group: Group, env: dict[str, str], tally: Tally) -> None:
    """Install a group, run its checks, and count them."""
    print(f"---- {group.name}: {' '.join(group.needs)}", flush=True)
    try:
        python = installed(group)
    except (OSError, subprocess.CalledProcessError) as error:
        return tally.fail(f"{group.name}: installing", str(error))
    report = BUILD / f"{group.name}.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-c", str(HERE / "pytest.ini"), "--rootdir", str(HERE), "-v", "--no-header", "--tb=short"]
    command += [f"--junitxml={report}", *group.files]
    folder = BUILD / group.name
    own = {
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "QUINTET_NODE": str(folder),
        "QUINTET_PYTHON": sys.executable,
    }
    clean = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_BASE_URL", "_API_BASE", "_TOKEN"))}
    try:
        done = subprocess.run(command, cwd=HERE, env={**clean, **env, **own, **group.env}, timeout=_GROUP_S, check=False)
    except subprocess.TimeoutExpired:
        return tally.fail(f"{group.name}: its checks", f"not done after {_GROUP_S} s")
    if not report.exists():
        return tally.fail(f"{group.name}: its checks", f"pytest ended with {done.returncode}")
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0)) + int(suite.get("skipped", 0))  # nothing here may be skipped
    tally.failed += failed or int(done.returncode != 0)
    tally.passed += int(suite.get("tests", 0)) - failed
    return None


def installed(group: Group) -> Path:
    """The Python that runs the group's checks, with everything installed.

    Raises:
        CalledProcessError, OSError: that failed.
    """
    folder = BUILD / group.name
    stamp, wanted = folder / "stamp.json", json.dumps([sys.version, *group.needs])
    python = Path(sys.executable) if group.node else folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    if group.node:
        folder.mkdir(parents=True)
        subprocess.run(["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(folder), *group.needs], check=True)
    else:
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "pytest", *group.needs], check=True)
    stamp.write_text(wanted)
    return python


@contextlib.contextmanager
def served(*what: str) -> Iterator[str]:
    """``quintet serve`` as a process of its own until the block ends; gives ``http://host:port``."""
    command = [sys.executable, "-m", "quintet", "serve", *what, "--port", "0", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            if not (found := _AT.search(line)):
                raise SystemExit(f"error: quintet serve did not come up: {line!r}")
            yield found[1]
        finally:
            process.terminate()
            process.wait(30)


def with_model(stack: contextlib.ExitStack) -> dict[str, str]:
    """Serve the bundled model, and score the tasks' answers on it without a server."""
    path = os.environ.get("QUINTET_TEST_MODEL", "smollm2")
    scores = BUILD / "direct_scores.json"
    subprocess.run([sys.executable, "-m", "tests.clients.direct_scores", path, str(scores)], cwd=ROOT, check=True)
    url = stack.enter_context(served(path, "--served-model-name", "smollm2", "--offline"))
    return {"QUINTET_SERVED": url, "QUINTET_DIRECT_SCORES": str(scores)}


def refused() -> dict[str, list[str]]:
    """Per dialect the fields that it still refuses, which examples therefore go without."""
    return {
        name: [field.name for field in one.fields if field.status is Status.LATER and "." not in field.name]
        for name, one in PROVIDERS.items()
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
