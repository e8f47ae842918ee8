"""What children are not told, and what no process leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from quintet import children

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel")


@pytest.mark.fault("G09")
def test_a_child_gets_what_an_interpreter_needs_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"PATH": "/bin", "LC_ALL": "C", "LD_LIBRARY_PATH": "/x", "PYTHONHASHSEED": "1", "QUINTET_ISA": "avx2"}
    secret = ("QUINTET_API_KEY", "QUINTET_ADMIN_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "NOTIFY_SOCKET", "ANYTHING")
    for name, value in {**kept, **dict.fromkeys(secret, "secret")}.items():
        monkeypatch.setenv(name, value)
    given = children.environment(MORE="2")
    assert given.items() >= {**kept, "MORE": "2"}.items()
    assert not given.keys() & set(secret)


CRASH = """
import ctypes, os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))
if sys.argv[1] == "private":
    from quintet.children import keep_private
    keep_private()
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE)[0], flush=True)
os.kill(os.getpid(), signal.SIGSEGV)
"""
"""3 is PR_GET_DUMPABLE."""


@pytest.mark.fault("G09")
@pytest.mark.parametrize(("how", "said"), [("private", b"0 0\n"), ("open", b"1 1073741824\n")])
def test_a_process_that_keeps_to_itself_leaves_no_core(how: str, said: bytes, tmp_path: object) -> None:
    with subprocess.Popen([sys.executable, "-c", CRASH, how], stdout=subprocess.PIPE, cwd=str(tmp_path)) as process:
        assert process.stdout is not None
        assert process.stdout.read() == said
        _, status = os.waitpid(process.pid, 0)
        process.returncode = -signal.SIGSEGV
        assert os.WTERMSIG(status) == signal.SIGSEGV
        assert not (how == "private" and os.WCOREDUMP(status))
