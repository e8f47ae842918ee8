"""Load a model while the event loop runs: progress on stderr, and the reason of a failure."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from quintet.backends.base import Backend, State
from quintet.engines.entry import settled
from quintet.errors import EngineFailed, ModelError


async def ready(engine: Backend, name: str) -> None:
    """Wait until ``engine`` can work.

    Raises:
        ModelError: the model cannot be loaded.
        EngineFailed: anything else went wrong; the log has it.
    """
    with _bar(f"loading {name}") as show:
        health = await settled(engine, show)
    failure = engine.failure
    if isinstance(failure, ModelError):
        raise failure
    if health.state is not State.READY:
        reason = str(failure) if isinstance(failure, EngineFailed) else repr(failure)
        raise EngineFailed(f"{name} could not be loaded: {reason}" if failure else f"the engine is {health.state.value}.")


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[float], None]]:
    """A bar that takes shares of 1 on a terminal; elsewhere silence, for a log needs no progress."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, completed=share)
