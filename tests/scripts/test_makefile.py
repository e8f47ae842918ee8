"""What ``make`` can do is told in its file's head and in the README, and no file's name gets in its way."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = sorted(name for names in re.findall(r"^([a-z][a-z -]*):(?!=)", MAKEFILE, re.MULTILINE) for name in names.split())


def test_every_target_is_declared_once_and_told_in_both_places() -> None:
    assert "check" in TARGETS
    assert sorted(" ".join(re.findall(r"^\.PHONY: (.*)", MAKEFILE, re.MULTILINE)).split()) == TARGETS
    assert sorted(re.findall(r"^# make (\S+)", MAKEFILE, re.MULTILINE)) == TARGETS
    readme = (ROOT / "README.md").read_text()
    assert set(TARGETS) <= set(re.findall(r"^make (\S+)", readme, re.MULTILINE))
