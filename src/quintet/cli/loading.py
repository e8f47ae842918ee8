"""Load a model while the event loop runs: progress on stderr, and the reason of a failure."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from quintet.backends.base import Backend, State
from quintet.backends.native.core import Loaded
from quintet.errors import EngineFailed, ModelError

_POLL_S = 0.05


class WatchedLoader:
    """A ``Loader`` that remembers why it failed."""

    def __init__(self, loader: Callable[[Callable[[float], None]], Loaded]) -> None:
        self._loader = loader
        self.failure: Exception | None = None

    def __call__(self, progress: Callable[[float], None]) -> Loaded:
        try:
            return self._loader(progress)
        except Exception as error:
            self.failure = error
            raise


async def ready(backend: Backend, loader: WatchedLoader, name: str) -> None:
    """Wait until ``backend`` can work.

    Raises:
        ModelError: the model cannot be loaded.
        EngineFailed: anything else went wrong; the log has it.
    """
    with _bar() as bar:
        task = bar.add_task(f"loading {name}", total=1.0)
        while (health := backend.health()).state is State.LOADING:
            bar.update(task, completed=health.progress)
            await asyncio.sleep(_POLL_S)
    if isinstance(loader.failure, ModelError):
        raise loader.failure
    if health.state is not State.READY:
        raise EngineFailed(f"{name} could not be loaded: {loader.failure!r}." if loader.failure else f"the engine is {health.state.value}.")


def _bar() -> Progress:
    """A bar on a terminal; elsewhere silence, for a log needs no progress."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
