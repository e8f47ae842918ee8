"""What the set-up says about a machine that lacks something: one sentence, before anything is made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "preflight.sh"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH with a shell's bare needs: no Python, no compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "env", "cat"):
        (folder / name).symlink_to(shutil.which(name) or "")
    return folder


def fake_python(folder: Path, fails: str, says: str = "") -> Path:
    """A Python that fails where its code contains ``fails``, and is the real one else."""
    path = folder / "python-fake"
    cases = f'*"{fails}"*) exit 1;; *python_version*) echo "{says}"; exit;;'
    path.write_text(f'#!/bin/sh\ncase "$2" in {cases} esac\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def preflight(python: str | Path, **environment: str) -> tuple[int, str]:
    done = subprocess.run([SCRIPT, str(python)], capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_this_machine_has_what_it_needs() -> None:
    assert preflight(sys.executable) == (0, "")


@pytest.mark.parametrize(
    ("fails", "says", "expected"),
    [
        ("version_info", "3.9.2", "error: Quintet needs Python 3.11 or newer, and '{python}' is 3.9.2; name a newer one: make PYTHON="),
        ("import venv", "", "error: the Python module venv (with ensurepip) is missing; install it"),
        ("Python.h", "", "error: Python's header file Python.h is missing; install it"),
    ],
)
def test_an_unfit_python_is_told_in_one_sentence(fails: str, says: str, expected: str, tools: Path) -> None:
    python = fake_python(tools, fails, says)
    code, said = preflight(python)
    assert code == 1
    assert said.startswith(expected.format(python=python))
    assert said.count("\n") == 1


def test_no_python_is_told_in_one_sentence(tools: Path) -> None:
    code, said = preflight("python3", PATH=str(tools))
    assert code == 1
    assert said.startswith("error: Quintet needs Python 3.11 or newer, and 'python3' was not found; ")


def test_no_compiler_is_told_in_one_sentence(tools: Path) -> None:
    code, said = preflight(sys.executable, PATH=str(tools), CXX="")
    assert (code, said.count("\n")) == (1, 1)
    assert said.startswith("error: a C++ compiler is missing; install g++ 12 or newer")


def test_an_old_compiler_is_told_in_one_sentence(tools: Path) -> None:
    (tools / "old-g++").write_text("#!/bin/sh\necho 'unknown option -std=c++20' >&2; exit 1\n")
    (tools / "old-g++").chmod(0o755)
    code, said = preflight(sys.executable, CXX=str(tools / "old-g++"))
    assert (code, said.count("\n")) == (1, 1)
    assert "does not compile C++20" in said
