"""packaging/docker without a builder: hadolint, what the Dockerfile copies, and the size of what it installs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.packaging.tools import PACKAGING, ROOT, tool

import quintet
from quintet import _core
from quintet.cli.batch import state_dir

DOCKER = PACKAGING / "docker"
FILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run([tool("hadolint"), str(DOCKER / "Dockerfile")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_runs_is_not_root_and_writes_nothing_outside_its_volume() -> None:
    last = FILE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 65532:65532$", last, re.MULTILINE)
    assert re.search(r"^VOLUME /models$", last, re.MULTILINE)
    assert "QUINTET_CACHE=/models" in last
    assert 'ENTRYPOINT ["/opt/quintet/bin/quintet"]' in last


def test_batches_are_kept_in_the_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    """As models are; so the compose file and the chart, whose root is read-only, need not say where they are."""
    last = FILE.rpartition("\nFROM ")[2]
    for name, value in re.findall(r"([A-Z_]+)=(/\S+)", last):
        monkeypatch.setenv(name, value)
    assert state_dir().is_relative_to("/models")
    compose = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
    assert "read_only: true" in compose and 'volumes: ["models:/models"]' in compose
    pod = (PACKAGING / "helm/quintet/templates/deployment.yaml").read_text(encoding="utf-8")
    assert "readOnlyRootFilesystem: true" in pod and "{name: models, mountPath: /models}" in pod


def test_the_file_of_keys_beside_the_compose_file_is_no_variable_of_the_server_s_and_goes_into_no_repository() -> None:
    compose = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
    found = re.search(r"file: \$\{(\w+):-\./(\S+)\}", compose)
    assert found and not found[1].startswith("QUINTET_")
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert f"/packaging/docker/{found[2]}" in ignored


def test_all_that_is_copied_is_there_and_is_let_through() -> None:
    let_through = [line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [word for words in re.findall(r"^COPY (?!--from)(.*) \S+$", FILE, re.MULTILINE) for word in words.split()]
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert any(name == one or name.startswith(f"{one}/") for one in let_through), name


def test_the_lock_of_the_image_is_the_lock_of_development_less_its_tools() -> None:
    ours = dict(re.findall(r"^(\S+)==(\S+)", (DOCKER / "requirements.lock").read_text(), re.MULTILINE))
    all_ = dict(re.findall(r"^(\S+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert ours.items() <= all_.items()
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[^\w-]", one.replace("_", "-"))[0].lower() for one in wanted} <= ours.keys()
    assert not {"pytest", "mypy", "ruff", "openai"} & ours.keys()


BASE_MB = 90
"""More than what distroless python3-debian13 takes, unpacked; the release workflow looks at the whole, where there is a builder."""


@pytest.mark.skipif("QUINTET_TEST_PACKAGING" not in os.environ, reason="installs everything; make test-packaging")
def test_what_is_installed_leaves_the_image_under_250_mb(tmp_path: Path) -> None:
    home = tmp_path / "quintet"
    subprocess.run(["python3", "-m", "venv", "--without-pip", home], check=True)
    pip = [f"{ROOT}/.venv/bin/python", "-m", "pip", "--quiet", "--python", f"{home}/bin/python", "install"]
    subprocess.run([*pip, "--require-hashes", "-r", f"{DOCKER}/requirements.lock"], check=True, stderr=subprocess.DEVNULL)
    package = Path(quintet.__file__).parent
    folder = next(home.glob("lib/python*/site-packages"))
    shutil.copytree(package, folder / "quintet", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(_core.__file__, folder / "quintet")
    steps = re.findall(r"^ && (find /opt/quintet/lib .*?) \\$", FILE, re.MULTILINE)
    assert len(steps) == 3
    for step in steps:
        subprocess.run(["bash", "-c", step.replace("/opt/quintet", str(home))], check=True)
    subprocess.run([home / "bin/python", "-m", "compileall", "-q", home / "lib"], check=True)
    size = sum(path.lstat().st_size for path in home.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6
    assert size + BASE_MB < 250, f"{size:.0f} MB"
