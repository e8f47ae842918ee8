"""Peers that are kept to AVX2 on a CPU that has more."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.common.avx2_only import SOURCE, keep_to_avx2
from bench.common.install import Store
from bench.common.plan import Plan
from bench.common.proc import PeerError, output
from bench.engines import run
from bench.engines.engine_vllm import Vllm
from bench.engines.engines import OpenVino, Ours, OursServed

LIBRARY = """
#include <cpuid.h>
extern "C" void ask(unsigned leaf, unsigned part, unsigned* r) { __cpuid_count(leaf, part, r[0], r[1], r[2], r[3]); }
extern "C" const unsigned char bytes[3] = {0x0f, 0xa2, 7};  // no instruction
"""
ASK = """
import ctypes, json, pathlib
library = ctypes.CDLL(str(next(pathlib.Path({packages!r}).rglob("*.so"))))
answer = (ctypes.c_uint * 4)()
def ask(leaf, part):
    library.ask(leaf, part, answer)
    return list(answer)
print(json.dumps([ask(*leaf) for leaf in [(0, 0), (1, 0), (7, 0), (7, 1)]] + [list((ctypes.c_ubyte * 3).in_dll(library, "bytes"))]))
"""


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64" or not shutil.which("objdump"), reason="needs objdump on x86")
def test_a_library_finds_avx2_and_no_more(tmp_path: Path) -> None:
    store, packages = Store(tmp_path), tmp_path / "env/site-packages"
    (packages / "peer").mkdir(parents=True)
    (tmp_path / "peer.cpp").write_text(LIBRARY)
    built = store.compiled(tmp_path / "peer.cpp", "peer", "-shared", "-fPIC")
    built.rename(packages / "peer/peer.so")

    def asked() -> list[list[int]]:
        code = f"import site; site.addsitedir({str(packages)!r})\n{ASK.format(packages=str(packages))}"
        answers: list[list[int]] = json.loads(output([sys.executable, "-c", code], store.log("asked"), 60))
        return answers

    before = asked()
    keep_to_avx2(packages, store.compiled(SOURCE, "handler", "-shared", "-fPIC"), store.log("changed"))
    after = asked()
    assert after[0] == before[0]
    assert after[1][2:] == before[1][2:]
    assert after[2][1] & 1 << 5 == before[2][1] & 1 << 5  # AVX2
    assert not after[2][1] & (1 << 16 | 1 << 30 | 1 << 31)  # AVX-512 F, BW, VL
    assert not after[2][2] & 1 << 11  # AVX-512 VNNI
    assert not after[2][3] & (1 << 24 | 1 << 25)  # AMX
    assert not after[3][0] & (1 << 4 | 1 << 5)  # AVX-VNNI, AVX-512 BF16
    assert after[4] == [0x0F, 0xA2, 7]


def test_without_objdump_the_peer_is_left_out_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerError, match="no objdump"):
        keep_to_avx2(tmp_path, tmp_path / "handler", tmp_path / "log")


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="the handler is of x86")
def test_an_instruction_that_the_cpu_does_not_have_still_ends_the_process(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / "peer.cpp").write_text('extern "C" void stop() { asm("ud2; nop"); asm(".byte 0x0f, 0xff, 0xc0"); }')
    peer = store.compiled(tmp_path / "peer.cpp", "peer", "-shared", "-fPIC")
    handler = store.compiled(SOURCE, "handler", "-shared", "-fPIC")
    code = f"import ctypes; ctypes.CDLL({str(handler)!r}); ctypes.CDLL({str(peer)!r}).stop()"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -4


def test_rows_that_are_kept_to_avx2_say_so_and_have_places_of_their_own(tmp_path: Path) -> None:
    plan, kept, free = Plan("model.gguf", 2), Store(tmp_path, "avx2"), Store(tmp_path)
    assert OpenVino(plan, kept, exact=True).title == "OpenVINO GenAI, avx2, float32"
    assert OpenVino(plan, kept).key != OpenVino(plan, free).key
    assert Ours(plan, kept, isa="avx2").title == "Quintet, core, avx2"
    served = OursServed(plan, kept)
    served.model = Path("model.gguf")
    assert "QUINTET_ISA=avx2" in served.command(1)
    (row,) = run.prepare([Vllm(plan, kept)]).values()
    assert "not measured with avx2" in row.reason
