"""The diagram of a sequence's states."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from quintet.backends.native.schedule.sequence import TRANSITIONS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def states() -> ModuleType:
    spec = importlib.util.spec_from_file_location("states", ROOT / "scripts" / "states.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_diagram_that_the_schedulers_table_gives(states: ModuleType) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert states.renewed(page) == page, "run scripts/states.py"


def test_every_transition_is_one_arrow(states: ModuleType) -> None:
    arrows = [line for line in states.diagram().splitlines() if "-->" in line and "[*]" not in line]
    assert len(arrows) == sum(map(len, TRANSITIONS.values()))
    assert "    prefill --> decode: ready" in arrows


def test_another_table_is_noticed_and_so_is_a_page_without_its_place(states: ModuleType) -> None:
    page = f"before\n{states.BEGIN}old\n{states.END}\nafter\n"
    assert states.renewed(page) == f"before\n{states.BEGIN}{states.diagram()}{states.END}\nafter\n"
    with pytest.raises(ValueError, match="it has 0"):
        states.renewed("nothing")
