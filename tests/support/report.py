"""What the tests of fetching share."""

from __future__ import annotations

GGUF = b"GGUF" + bytes(range(256)) * 40


class Notes:
    """A report that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.seen: list[tuple[int, int]] = []

    def note(self, line: str) -> None:
        self.lines.append(line)

    def progress(self, done: int, total: int) -> None:
        self.seen.append((done, total))
