"""docs/architecture.md: no room is missing on it, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PLAN = PAGE.partition("## Rooms")[2].partition("\n## ")[0]
CODE = (".py", ".cpp", ".h")
TOP = ("src/quintet", "csrc", "tests", "bench", "scripts")
FILES = [path.relative_to(ROOT) for folder in TOP for path in (ROOT / folder).rglob("*") if path.suffix in CODE]


def mirrors_a_room(room: Path) -> bool:
    """A folder of tests of what has its own place on the page."""
    place = ROOT / "src/quintet" / room.relative_to("tests") if room.is_relative_to("tests") else None
    return place is not None and (place.is_dir() or place.with_suffix(".py").is_file())


@pytest.mark.parametrize("room", sorted({path.parent for path in FILES}), ids=str)
def test_every_room_has_its_place(room: Path) -> None:
    assert f"{room.name}/" in PLAN or mirrors_a_room(room)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/.]+\.(?:py|h|cpp))\b", PAGE))))
def test_every_file_that_it_names_is_there(name: str) -> None:
    assert any(f"/{path.as_posix()}".endswith(f"/{name}") for path in FILES)


@pytest.mark.parametrize("name", sorted({*re.findall(r"\]\(([\w/.-]+\.md)", PAGE)}))
def test_every_page_that_it_links_to_is_there(name: str) -> None:
    assert (ROOT / "docs" / name).is_file()
