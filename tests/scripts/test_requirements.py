"""The set-up takes only files whose hashes were recorded, and nothing runs at Python's start that nobody put there."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.fault("D18")
def test_the_lock_has_a_version_and_hashes_of_everything_that_is_wanted() -> None:
    requirements = script("requirements")
    packages = requirements.locked(LOCK)
    assert {requirements.name_of(one) for one in requirements.wanted()} <= packages.keys()
    for name, lines in packages.items():
        versions = re.findall(r"^\S+?==\S+", lines, re.MULTILINE)
        assert versions and lines.count("--hash=sha256:") >= len(versions), name
    assert "".join(packages.values()) == re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE), "nothing is lost"


def test_a_lock_that_lacks_something_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements = script("requirements")
    shorter = tmp_path / "requirements.lock"
    shorter.write_text("\n".join(line for line in LOCK.split("\n") if not line.startswith("uvicorn")))
    monkeypatch.setattr(requirements, "LOCK", shorter)
    assert requirements.main() == 1
    assert capsys.readouterr().err == "error: requirements.lock lacks uvicorn; run make lock\n"


def wheel(folder: Path, body: str) -> Path:
    path = folder / "altered-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("altered.py", body)
        file.writestr("altered-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: altered\nVersion: 1.0\n")
        file.writestr("altered-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("altered-1.0.dist-info/RECORD", "altered.py,,\n")
    return path


@pytest.mark.fault("D18")
def test_a_package_that_was_altered_since_is_not_installed(tmp_path: Path) -> None:
    """With the options of the Makefile, on an index that is a folder."""
    options = re.search(r"pip install .*?(--require-hashes) -r", (ROOT / "Makefile").read_text())
    assert options is not None
    recorded = hashlib.sha256(wheel(tmp_path, "good = 1").read_bytes()).hexdigest()
    (tmp_path / "lock").write_text(f"altered==1.0 --hash=sha256:{recorded}\n")

    def install() -> subprocess.CompletedProcess[str]:
        words = ["install", "--isolated", "--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "into"), options[1]]
        return subprocess.run([sys.executable, "-m", "pip", *words, "-r", str(tmp_path / "lock")], capture_output=True, text=True)

    assert install().returncode == 0
    shutil.rmtree(tmp_path / "into")
    wheel(tmp_path, "import os  # and so on")
    done = install()
    assert done.returncode != 0 and "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "into").exists()


@pytest.mark.fault("D18")
def test_a_file_that_would_run_whenever_python_starts_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    startup = script("startup_files")
    assert startup.main() == 0, capsys.readouterr().err
    (tmp_path / "paths.pth").write_text("/somewhere\n")
    (tmp_path / "distutils-precedence.pth").write_text("import os\n")
    assert startup.unknown(tmp_path) == []
    (tmp_path / "zz_init.pth").write_text("# harmless?\nimport os; os.system('x')\n")
    (tmp_path / "usercustomize.py").write_text("")
    assert startup.unknown(tmp_path) == ["usercustomize.py", "zz_init.pth"]
