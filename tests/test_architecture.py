"""Rules of the code base that a reader may rely on, read off the source: who imports whom, what is pure, how long things are."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"

VALUES = frozenset({"request", "events", "errors", "thinking", "config", "metrics"})
LEAVES = frozenset({"dialects", "backends", "text", "models"})
MAY_IMPORT = {
    "cli": {"cli", "server", "service", *LEAVES, *VALUES},
    "server": {"server", "service", "dialects", "backends.base", *VALUES},
    "service": {"service", "text", "backends.base", *VALUES},
    "dialects": {"dialects", *VALUES},
    "text": {"text", *VALUES},
    "models": {"models", *VALUES},
    "backends": {"backends", "models", *VALUES},
    **dict.fromkeys(VALUES, VALUES),
    "__main__": {"cli"},
    "__init__": set(),
}
"""First part of a module's path inside ``quintet`` -> what of ``quintet`` it may import (by prefix)."""

IMPORTERS = {
    "click": ("cli/",),
    "rich": ("cli/",),
    "uvicorn": ("cli/",),
    "uvloop": ("cli/",),
    "starlette": ("server/",),
    "huggingface_hub": ("models/hub.py",),
    "gguf": ("models/gguf.py",),
    "tokenizers": ("models/tokenizer.py",),
    "llguidance": ("backends/native/guide.py",),
    "quintet._core": ("backends/native/core.py", "backends/native/isa.py"),
    "msgspec": ("dialects/", "server/", "backends/native/codec.py", *(f"{name}.py" for name in VALUES)),
    "numpy": ("backends/",),
}
"""Foreign library -> where in ``quintet`` it may be imported. A library not named here may be imported nowhere."""

PURE = ("dialects/", "text/", "thinking.py", "backends/native/scheduler.py", "backends/native/sequence.py", "backends/native/pages.py")
IMPURE_MODULES = frozenset(
    {"asyncio", "threading", "concurrent", "multiprocessing", "subprocess", "signal"}
    | {"socket", "select", "selectors", "ssl", "http", "urllib", "logging"}
    | {"time", "datetime", "random", "secrets", "uuid"}
    | {"os", "io", "pathlib", "shutil", "tempfile", "fcntl", "mmap"}
)
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval"})

MAX_FILE = 400
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


def layer_faults(place: str, source: str) -> list[str]:
    """Imports of ``quintet`` modules that the layers forbid. ``place`` is the file's path inside ``quintet``."""
    layer = place.removesuffix(".py").split("/")[0]
    allowed = MAY_IMPORT[layer]
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


def purity_faults(place: str, source: str) -> list[str]:
    """I/O, clocks, threads and global randomness in a module that must be plain code over values."""
    if not place.startswith(PURE):
        return []
    tree = ast.parse(source)
    faults = [name for name in imports(tree) if name.split(".")[0] in IMPURE_MODULES]
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef):
            faults.append(f"async def {node.name}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            faults.append(f"{node.func.id}()")
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("np.random", "numpy.random"):
            faults.append("numpy.random")
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
def test_native_files_stay_short_enough_to_read(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE


def test_there_is_something_to_check() -> None:
    assert {path.relative_to(SRC / "quintet").parts[0] for path in MODULES} >= {"cli", "models", "backends", "errors.py"}


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("dialects/openai.py", "from quintet.backends import base"),
        ("backends/toy.py", "import quintet.dialects.openai"),
        ("service.py", "from quintet.backends.native.engine import Engine"),
        ("service.py", "from quintet.dialects import openai"),
        ("server/app.py", "from quintet.backends import toy"),
        ("models/store.py", "from quintet import cli"),
        ("errors.py", "def late():\n    import quintet.service"),
        ("text/stop.py", "from quintet.models.spec import ModelSpec"),
    ],
)
def test_an_upward_or_sideways_import_is_a_fault(place: str, source: str) -> None:
    assert len(layer_faults(place, source)) == 1


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("service.py", "import starlette.requests"),
        ("backends/native/engine.py", "from quintet import _core"),
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
    assert purity_faults("backends/native/engine.py", source) == []


def test_allowed_imports_are_no_faults() -> None:
    source = "import json\nfrom quintet.backends import base\nfrom quintet.backends.base import Backend\nfrom quintet.text import stop\n"
    assert layer_faults("service.py", source) == foreign_faults("service.py", source) == []


def test_a_long_function_is_found() -> None:
    body = "    x = 1\n"
    assert long_functions(f"def f():\n{body * (MAX_FUNCTION - 1)}") == []
    assert long_functions(f"class C:\n  async def f():\n{body * MAX_FUNCTION}") == ["f: 61 lines"]
