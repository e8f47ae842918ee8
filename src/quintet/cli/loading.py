"""Load a model while the event loop runs: progress on stderr, the reason of a failure, and a way to call it off."""

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
    """A ``Loader`` that remembers why it failed, and that can be called off at its next report of progress."""

    def __init__(self, loader: Callable[[Callable[[float], None]], Loaded]) -> None:
        self._loader = loader
        self.failure: Exception | None = None
        self.called_off = False

    def __call__(self, progress: Callable[[float], None]) -> Loaded:
        def step(share: float) -> None:
            if self.called_off:
                raise ModelError("loading was called off.")
            progress(share)

        try:
            return self._loader(step)
        except Exception as error:
            self.failure = error
            raise


async def ready(backend: Backend, loader: WatchedLoader, name: str) -> None:
    """Wait until ``backend`` can work. Cancelled, it calls the loading off.

    Raises:
        ModelError: the model cannot be loaded.
        EngineFailed: anything else went wrong; the log has it.
    """
    try:
        with _bar() as bar:
            task = bar.add_task(f"loading {name}", total=1.0)
            while (health := backend.health()).state is State.LOADING:
                bar.update(task, completed=health.progress)
                await asyncio.sleep(_POLL_S)
    finally:
        loader.called_off = True  # without effect once loading has ended
    if isinstance(loader.failure, ModelError):
        raise loader.failure
    if health.state is not State.READY:
        raise EngineFailed(f"{name} could not be loaded: {loader.failure!r}." if loader.failure else f"the engine is {health.state.value}.")


def _bar() -> Progress:
    """A bar on a terminal; elsewhere silence, for a log needs no progress."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
