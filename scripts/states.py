"""Write the diagram of a sequence's states into docs/architecture.md, from the scheduler's table ``TRANSITIONS``.

``--check`` writes nothing, and fails if the page has another diagram.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from quintet.backends.native.schedule.sequence import TRANSITIONS, State

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
BEGIN, END = "<!-- states -->\n", "<!-- /states -->"
_DIAGRAM = re.compile(f"{BEGIN}.*{END}", re.DOTALL)


def diagram() -> str:
    """The table as Mermaid, which GitHub draws: a sequence begins in the first state and is gone after one without a way out."""
    lines = [f"{state.value} --> {after.value}: {action.value}" for state, ways in TRANSITIONS.items() for action, after in ways.items()]
    ends = [f"{state.value} --> [*]" for state, ways in TRANSITIONS.items() if not ways]
    return "\n    ".join(["```mermaid\nstateDiagram-v2", f"[*] --> {next(iter(State)).value}", *lines, *ends]) + "\n```\n"


def renewed(page: str) -> str:
    """The page with the diagram of now.

    Raises:
        ValueError: it has no place for one.
    """
    made, places = _DIAGRAM.subn(lambda _: BEGIN + diagram() + END, page)
    if places != 1:
        raise ValueError(f"{PAGE.name} must have one {BEGIN.strip()} ... {END}, it has {places}")
    return made


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    made = renewed(page)
    if "--check" in sys.argv[1:]:
        return int(made != page)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
