"""For the tests that call commands in the process that runs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quintet.cli import serve


@pytest.fixture(autouse=True, scope="session")
def openness() -> Iterator[None]:
    """What a server does to keep its own process private cannot be undone: not to the one that runs the tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(serve, "keep_private", lambda: None)
        yield
