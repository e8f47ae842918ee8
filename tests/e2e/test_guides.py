"""The pages of docs/guides, one per kind of user: every command and program on them is run, against the bundled model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.test_serve_command import served

GUIDES = Path(__file__).parents[2] / "docs/guides"
PAGES = sorted(path.name for path in GUIDES.glob("*.md"))
PATIENCE_S = 120


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and content of each block of code."""
    return re.findall(r"^```(\w+)\n(.*?)^```", (GUIDES / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run(language: str, code: str, folder: Path, url: str) -> str:
    """Run a block in a folder, against a server that stands elsewhere than on the page; what it prints."""
    command = {"sh": ["bash", "-euc"], "python": [sys.executable, "-c"]}[language]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    code = code.replace("http://127.0.0.1:8000", url)
    done = subprocess.run(
        [*command, code], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    assert done.stdout.strip(), code
    return done.stdout


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    """A server as most of the pages start it."""
    with served("smollm2") as one:
        yield one.url


@pytest.mark.parametrize("page", [page for page in PAGES if page != "team.md"])
def test_what_the_page_says_works(page: str, plain: str, tmp_path: Path) -> None:
    found = blocks(page)
    assert found[0] == ("sh", "quintet serve\n")
    assert len(found) > 1
    for language, code in found[1:]:
        run(language, code, tmp_path, plain)


def test_what_the_team_s_page_says_works(tmp_path: Path) -> None:
    add, list_, serve, ready, usage = (code for language, code in blocks("team.md") if language == "sh")
    key = run("sh", add, tmp_path, "").split()[-1]
    assert "ana" in run("sh", list_, tmp_path, "")
    options = serve.removeprefix("quintet serve ").split()
    with served(*(str(tmp_path / word) if word.endswith(".db") else word for word in options)) as one:
        run("sh", ready, tmp_path, one.url)
        assert one.post({"prompt": "a", "max_tokens": 2})[0] == 401
        assert one.post({"prompt": "a", "max_tokens": 2}, authorization=f"Bearer {key}")[0] == 200
        assert "smollm2" in run("sh", usage, tmp_path, one.url)
