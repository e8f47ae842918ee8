"""Where the bundled model's file is."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


class Silent:
    """A ``Report`` to nobody."""

    def note(self, line: str) -> None:
        pass

    def progress(self, done: int, total: int) -> None:
        pass


@cache
def bundled_path() -> Path:
    """In the cache, where ``make setup`` puts it; ``QUINTET_TEST_MODEL`` names another place of it."""
    if given := os.environ.get("QUINTET_TEST_MODEL"):
        return Path(given)
    from quintet.models import store

    return store.resolve("smollm2", Silent(), offline=True).path
