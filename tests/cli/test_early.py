"""Signals end a command quietly, whatever it is about: a module that is imported, its own work, or Python's end."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

INTERRUPTED_IN = """
import atexit, os, signal, sys
import quintet.cli

class Finder:
    def find_spec(name, *_):
        if name == {moment!r}:
            {how}
        if {moment!r} == "the end" and name == "quintet.cli.models":
            atexit.register(interrupt)

class Unheard:
    def __del__(self):  # where nothing can be raised
        interrupt()

class Named:
    def __set_name__(self, *_):  # where whatever is raised becomes another error
        interrupt()

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid()):  # of a module that Python takes down
        kill(pid, {number:d})

def interrupt():
    os.kill(os.getpid(), {number:d})

sys.meta_path.insert(0, Finder)
if {moment!r} == "the last moment":
    late = Late()
sys.argv = ["quintet", *{words!r}]
quintet.cli.main()
"""


def interrupted(
    moment: str, *words: str, how: str = "interrupt()", ignored: bool = False, number: int = signal.SIGINT
) -> subprocess.CompletedProcess[str]:
    """A command in which a signal comes when it imports this module, or at the end."""
    code = INTERRUPTED_IN.format(moment=moment, how=how, words=words, number=number)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if ignored else None
    try:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("how", ["interrupt()", "exec('interrupt()', globals())", "Unheard()"])
@pytest.mark.parametrize(
    ("moment", "words"),
    [
        ("click", ["list"]),
        ("quintet.cli.app", ["list"]),
        ("quintet.cli.models", ["list"]),
        ("quintet.cli.run", ["run", "toy/", "hi"]),
        ("quintet.keys.store", ["keys", "list", "--keys", "none.db"]),
        ("quintet.cli.asked", ["cluster", "--toy"]),
        ("the end", ["list"]),
    ],
)
def test_ctrl_c_is_exit_code_130_and_no_traceback_whenever_it_comes(moment: str, words: list[str], how: str) -> None:
    done = interrupted(moment, *words, how=how)
    assert (done.returncode, done.stderr.strip()) == (130, "")


def test_ctrl_c_in_pythons_last_moment_leaves_the_exit_code_as_it_is() -> None:
    for words, code in ((["list"], 0), (["show", "none.gguf"], 1)):
        assert interrupted("the last moment", *words).returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("how", ["interrupt()", "exec('interrupt()', globals())", "Unheard()", "type('A', (), {'a': Named()})"])
@pytest.mark.parametrize("moment", ["click", "quintet.cli.app", "quintet.cli.serve"])
def test_a_server_that_is_to_end_before_it_has_begun_ends_with_code_0_whatever_it_is_about(moment: str, how: str, number: int) -> None:
    done = interrupted(moment, "serve", "--toy", "--port", "0", how=how, number=number)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_who_starts_it_may_have_ctrl_c_not_heard() -> None:
    for moment in ("click", "quintet.cli.models", "the end"):
        done = interrupted(moment, "list", ignored=True)
        assert (done.returncode, done.stderr) == (0, "")
