"""What children are not told, and what no process leaves behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from quintet import children, logs
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.process import ProcessLink
from quintet.backends.native.front.spawn import spawn
from quintet.backends.native.wire.sources import ModelSource
from quintet.backends.toy import ToyTokenizer
from quintet.config import EngineConfig
from quintet.forks.parent import Forks

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


TASKS = """
import os, socket, sys
import numpy
socket.socket(fileno=int(sys.argv[1])).sendall(bytes([len(os.listdir("/proc/self/task"))]))
"""


def test_numpy_starts_no_threads_in_a_process_that_computes() -> None:
    """They would spin on every CPU for a while, and nothing multiplies matrices with them."""
    child = spawn(("-c", TASKS), "WARNING", logs.TEXT)
    try:
        child.sock.settimeout(60)
        assert child.sock.recv(1) == b"\x01"
    finally:
        child.drop()


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
@pytest.mark.parametrize(
    ("how", "dumpable", "said"),
    [("private", "", b"0 0\n"), ("private", "0", b"0 0\n"), ("private", "1", b"1 1073741824\n"), ("open", "", b"1 1073741824\n")],
)
def test_a_process_that_keeps_to_itself_leaves_no_core_unless_asked_to(how: str, dumpable: str, said: bytes, tmp_path: object) -> None:
    environment = {**os.environ, "QUINTET_DUMPABLE": dumpable}
    with subprocess.Popen([sys.executable, "-c", CRASH, how], stdout=subprocess.PIPE, cwd=str(tmp_path), env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.read() == said
        _, status = os.waitpid(process.pid, 0)
        process.returncode = -signal.SIGSEGV
        assert os.WTERMSIG(status) == signal.SIGSEGV
        assert said != b"0 0\n" or not os.WCOREDUMP(status)


CHECKS = """
import ctypes
from quintet.forks import child
child.serve(lambda client: client.sendall(b"%d" % ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)), child.Bounds(5.0, 60.0, 1 << 31))
"""

COMPUTES = """
import ctypes
from quintet.backends.native.worker import child
from quintet.errors import ModelError
def refuse(source, table):
    def load(progress):
        raise ModelError("dumpable: %d" % ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
    return load
child.main(refuse)
"""


@pytest.mark.fault("G09")
def test_whoever_is_started_keeps_to_itself_though_its_parent_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """It inherits a limit of 0, which does not hold for cores that go to a program; what does hold ends with ``exec``."""
    monkeypatch.delenv("QUINTET_DUMPABLE", raising=False)

    async def scenario() -> tuple[bytes, str]:
        checks = Forks("", 60.0, "Nothing can be asked.")
        checks.command = ("-c", CHECKS)
        link = ProcessLink(ModelSource(path="", threads=1, context=None, name="toy"), ToyTokenizer, EngineConfig(), ("-c", COMPUTES))
        engine = Engine(link, EngineConfig())
        try:
            async with asyncio.timeout(60):
                while engine.failure is None:
                    await asyncio.sleep(0.01)
            return await checks.ask(b"?"), str(engine.failure)
        finally:
            checks.close()
            await engine.close()

    assert asyncio.run(scenario()) == (b"0", "dumpable: 0")
