"""Rules of the code base that a reader may rely on, read off the source: who imports whom, what is pure, how long things are."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"

VALUES = frozenset({"request", "events", "errors", "thinking", "prediction", "config", "quota", "batch"})
NATIVE = "backends.native"
MAY_IMPORT: dict[str, set[str]] = {
    "cli": {"cli", "listen", "logs", "machine", "children", "executor", "server", "ledger", "service", "engines", "dialects", "backends"}
    | {"batches", "guides", "inputs", "keys", "text", "models", "moderation", "conformance", "load", "deploy"},
    "deploy": {"deploy", *(f"{NATIVE}.{room}" for room in ("front", "schedule.pages", "wire", "core"))}
    | {"backends.base", "inputs", "logs", "models"},
    "conformance": {"conformance"},
    "listen": {"listen"},
    "load": {"load"},
    "server": {"server", "batches", "ledger", "service", "engines", "dialects", "inputs", "keys", "backends.base", "executor", "turns"}
    | {"moderation.judge", "guides.check", "logs"},
    "batches": {"batches", "turns"},
    "ledger": {"ledger"},
    "keys": {"keys"},
    "service": {"service", "engines", "moderation", "inputs", "text", "backends.base", "backends.retry", "executor"},
    "engines": {"engines", "moderation.format", "inputs", "guides", "backends.base", "executor"},
    "moderation": {"moderation", "inputs", "backends.base", "backends.retry"},
    "dialects": {"dialects"},
    "text": {"text"},
    "models": {"models"},
    "guides": {"guides", "forks", "models.pieces", "shares", "turns"},
    "inputs": {"inputs", "guides", "forks", "models.traits", "executor", "shares", "turns"},
    "backends.base": {"inputs"},
    "backends.retry": {"backends.base"},
    "backends.toy": {f"{NATIVE}.core", "inputs", "models"},
    f"{NATIVE}.front": {f"{NATIVE}.{room}" for room in ("front", "worker", "wire", "core")}
    | {"backends.base", "inputs", "guides", "models.pieces", "children", "logs", "machine", "shares", "turns"},
    f"{NATIVE}.worker": {f"{NATIVE}.{room}" for room in ("worker", "schedule", "wire", "draft", "core")}
    | {"backends.base", "backends.toy", "inputs", "guides", "logs", "models", "children", "machine"},
    f"{NATIVE}.schedule": {f"{NATIVE}.{room}" for room in ("schedule", "wire", "draft", "core")} | {"backends.base", "inputs", "guides"},
    f"{NATIVE}.wire": {f"{NATIVE}.wire", f"{NATIVE}.core", "backends.base", "inputs"},
    f"{NATIVE}.draft": {f"{NATIVE}.draft", "guides"},
    f"{NATIVE}.core": {f"{NATIVE}.core", "inputs.tokenizer", "inputs.images.layout", "models.spec", "models.vision"},
    NATIVE: set(),
    "backends.vllm": {"backends.vllm", *(f"{NATIVE}.{room}" for room in ("worker", "schedule", "wire", "draft", "core"))}
    | {"backends.base", "inputs", "guides", "models", "children", "logs"},
    "backends": set(),
    **{value: set() for value in VALUES},
    "logs": set(),
    "machine": set(),
    "children": set(),
    "forks": {"forks", "children"},
    "executor": {"turns"},
    "shares": set(),
    "turns": set(),
    "__main__": {"cli"},
    "__init__": set(),
}
"""A room, as the beginning of a module's path inside ``quintet`` -> what it may import of the others, beside ``VALUES``, which all may.
The longest room that a module stands in counts. Rooms of the native engine go down too: front > worker > schedule > wire, draft, core."""

IMPORTERS = {
    "click": ("cli/",),
    "rich": ("cli/",),
    "uvicorn": ("listen/",),
    "httptools": ("listen/protocol.py",),
    "uvloop": ("cli/",),
    "prometheus_client": ("server/metrics.py", "server/collectors.py", "cli/scrape.py"),
    "huggingface_hub": ("models/hub.py",),
    "httpx2": ("models/downloads.py",),
    "tokenizers": ("models/folder/tokenizer.py",),
    "sentencepiece": ("models/spm.py",),
    "llguidance": ("guides/llguidance/",),
    "quintet.guides.llguidance": ("guides/matcher.py",),
    "quintet._core": ("backends/native/core/", "models/texts.py", "models/folder/layouts.py"),
    "msgspec": (
        "dialects/",
        "server/",
        "batches/",
        "backends/native/wire/",
        "backends/vllm/wire.py",
        "backends/native/worker/pack_directory.py",
        "deploy/remote.py",
        "keys/store.py",
        *(f"{name}.py" for name in VALUES),
    ),
    "multipart": ("server/uploads.py",),
    "numpy": ("backends/", "guides/"),
    "opentelemetry": ("server/otel.py",),
    "ray": ("deploy/ray.py",),
    "torch": ("backends/vllm/core.py", "backends/vllm/v1.py", "backends/vllm/v2.py"),
    "vllm": ("backends/vllm/core.py", "backends/vllm/processor.py", "backends/vllm/v1.py", "backends/vllm/v2.py"),
    "PIL": ("inputs/images/decode.py", "backends/vllm/processor.py"),
}
"""Foreign library -> where in ``quintet`` it may be imported. A library not named here may be imported nowhere."""

PURE = (
    "dialects/",
    "conformance/",
    "text/",
    "thinking.py",
    "prediction.py",
    "backends/native/schedule/",
    "backends/native/draft/",
    "backends/native/wire/",
)
CLAIM = re.compile(r"\bpure\b|\bplain code\b", re.IGNORECASE)
"""What the first lines of a module say that is pure too."""

IMPURE_MODULES = frozenset(
    {"asyncio", "threading", "concurrent", "multiprocessing", "subprocess", "signal"}
    | {"socket", "select", "selectors", "ssl", "http", "urllib", "logging"}
    | {"time", "datetime", "random", "secrets", "uuid"}
    | {"os", "io", "pathlib", "shutil", "tempfile", "fcntl", "mmap"}
)
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval"})

MAX_FILE = 400
MAX_LINE = 140
MAX_FUNCTION = 60


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imports(tree: ast.AST) -> Iterator[str]:
    """Every imported module or name as a dotted path; ``from a import b`` counts as ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def read_module(name: str) -> str | None:
    """The source of ``quintet.<name>``."""
    base = SRC / "quintet" / name.replace(".", "/")
    found = next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)
    return found.read_text(encoding="utf-8") if found else None


def at_run_time(source: str) -> ast.Module:
    """The code without what is imported for its types alone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return tree


@cache
def runtime_modules(source: str) -> list[str]:
    """What of ``quintet`` is imported when the code runs, not only for its types: modules, and names in them."""
    found = [name.removeprefix("quintet.") for name in imports(at_run_time(source)) if within(name, "quintet")]
    return [*found, *(name.rpartition(".")[0] for name in found if "." in name)]


def room_of(place: str) -> str:
    """The longest of the rooms that a file stands in."""
    module = place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return max((room for room in MAY_IMPORT if within(module, room)), key=len)


def layer_faults(place: str, source: str) -> list[str]:
    """Imports of ``quintet`` modules that the layers forbid. ``place`` is the file's path inside ``quintet``."""
    allowed = MAY_IMPORT[room_of(place)] | VALUES
    inside = [name.removeprefix("quintet.") for name in imports(ast.parse(source)) if within(name, "quintet")]
    return [name for name in inside if name not in ("__version__", "_core") and not any(within(name, one) for one in allowed)]


def foreign_faults(place: str, source: str) -> list[str]:
    """Imports of foreign libraries outside their one place."""
    faults = []
    for name in imports(ast.parse(source)):
        library = "quintet._core" if within(name, "quintet._core") else name.split(".")[0]
        if library == "quintet" or library in sys.stdlib_module_names:
            continue
        if not place.startswith(IMPORTERS.get(library, ("nowhere",))):
            faults.append(name)
    return faults


def claims_purity(place: str, source: str) -> bool:
    """By its room, or by the words of its docstring."""
    return place.startswith(PURE) or bool(CLAIM.search(ast.get_docstring(ast.parse(source)) or ""))


@cache
def own_impurities(source: str) -> list[str]:
    """I/O, clocks, threads and global randomness in a module."""
    tree = at_run_time(source)
    faults = [name for name in imports(tree) if name.split(".")[0] in IMPURE_MODULES and not within(name, "urllib.parse")]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
            node.body = []  # it says what others do
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef):
            faults.append(f"async def {node.name}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            faults.append(f"{node.func.id}()")
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("np.random", "numpy.random"):
            faults.append("numpy.random")
    return faults


def purity_faults(place: str, source: str, read: Callable[[str], str | None] = read_module) -> list[str]:
    """What makes a module impure that must be plain code over values, itself or through anything that it imports.

    Args:
        read: the source of a module of ``quintet``; ``None`` = there is none of this name.
    """
    if not claims_purity(place, source):
        return []
    faults = [*own_impurities(source)]
    seen: set[str] = set()
    left = [*runtime_modules(source)]
    while left:
        name = left.pop()
        inner = None if name in seen else read(name)
        seen.add(name)
        if inner is not None:
            faults += [f"{name}: {fault}" for fault in own_impurities(inner)]
            left += runtime_modules(inner)
    return faults


def long_functions(source: str) -> list[str]:
    """Functions over the limit, docstring and all."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION:
                found.append(f"{node.name}: {lines} lines")
    return found


def ids(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


MODULES = python_files("src")


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_module_imports_only_downwards_and_libraries_only_in_their_place_and_pure_code_is_pure(path: Path) -> None:
    place, source = path.relative_to(SRC / "quintet").as_posix(), path.read_text(encoding="utf-8")
    assert layer_faults(place, source) == []
    assert foreign_faults(place, source) == []
    assert purity_faults(place, source) == []


@pytest.mark.parametrize("path", python_files("src", "tests", "bench", "scripts"), ids=ids)
def test_files_and_functions_stay_short_enough_to_read(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MAX_FILE
    assert long_functions(source) == []


@pytest.mark.parametrize("path", sorted(path for path in (ROOT / "csrc").rglob("*") if path.is_file()), ids=ids)
def test_native_files_and_their_lines_stay_short_enough_to_read(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MAX_FILE
    assert [line for line in lines if len(line) > MAX_LINE] == []  # the formatter leaves comments as they are


# All of the scheduler's tests but the longest.
WITHOUT_CORE = """
import importlib, sys
sys.modules["quintet._core"] = None
for name in {modules!r}:
    importlib.import_module(name)
import pytest
which = "not Interleaving and not TestPool and not whoever_comes_has_each_token and not whatever_was_kept"
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "tests/backends/native/schedule", "-k", which]))
"""


def test_the_scheduler_its_drafts_and_the_toy_are_imported_and_tested_with_no_compiled_core() -> None:
    rooms = [SRC / "quintet/backends/native" / room for room in ("schedule", "draft")]
    paths = [*(path for room in rooms for path in room.glob("*.py")), SRC / "quintet/backends/toy.py"]
    modules = sorted(".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__") for path in paths)
    command = [sys.executable, "-c", WITHOUT_CORE.format(modules=modules)]
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_there_is_something_to_check() -> None:
    assert {path.relative_to(SRC / "quintet").parts[0] for path in MODULES} >= {"cli", "models", "backends", "errors.py"}


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("dialects/openai/dialect.py", "from quintet.backends import base"),
        ("backends/toy.py", "import quintet.dialects.openai.dialect"),
        ("service/job.py", "from quintet.backends.native.front.engine import Engine"),
        ("service/job.py", "from quintet.dialects import openai"),
        ("server/app.py", "from quintet.backends import toy"),
        ("models/store.py", "from quintet import cli"),
        ("errors.py", "def late():\n    import quintet.service.job"),
        ("text/stop.py", "from quintet.models.spec import ModelSpec"),
        ("inputs/prepare.py", "from quintet.backends.base import Backend"),
        ("inputs/tokenizer.py", "from quintet.models.tokenizer import Tokenizer"),
        ("backends/native/schedule/kv.py", "from quintet.backends.native.worker.step import Stepper"),
        ("backends/native/wire/messages.py", "from quintet.backends.native.schedule.plan import Plan"),
        ("backends/native/draft/lookup.py", "from quintet.backends.native.core.runner import Runner"),
    ],
)
def test_an_upward_or_sideways_import_is_a_fault(place: str, source: str) -> None:
    assert len(layer_faults(place, source)) == 1


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("service/job.py", "import prometheus_client"),
        ("backends/native/front/engine.py", "from quintet import _core"),
        ("models/store.py", "def late():\n    from huggingface_hub import hf_hub_download"),
        ("cli/serve.py", "import requests"),
        ("request.py", "import numpy as np"),
    ],
)
def test_a_foreign_library_outside_its_place_is_a_fault(place: str, source: str) -> None:
    assert len(foreign_faults(place, source)) == 1


@pytest.mark.parametrize(
    "source",
    ["import time", "from os import path", "import asyncio.events", "open('x')", "async def f(): ...", "np.random.rand()"],
)
def test_impure_code_is_a_fault_in_pure_modules_only(source: str) -> None:
    assert len(purity_faults("text/stop.py", source)) == 1
    assert purity_faults("backends/native/front/engine.py", source) == []


def test_allowed_imports_are_no_faults() -> None:
    source = "import json\nfrom quintet.backends import base\nfrom quintet.backends.base import Backend\nfrom quintet.text import stop\n"
    assert layer_faults("service/job.py", source) == foreign_faults("service/job.py", source) == []


def test_a_long_function_is_found() -> None:
    body = "    x = 1\n"
    assert long_functions(f"def f():\n{body * (MAX_FUNCTION - 1)}") == []
    assert long_functions(f"class C:\n  async def f():\n{body * MAX_FUNCTION}") == ["f: 61 lines"]
