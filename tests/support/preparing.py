"""What stands between a request and an engine in a server, for tests that talk to an engine, or to a double of one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import cast
from weakref import WeakKeyDictionary, proxy

from quintet.backends.base import Backend
from quintet.executor import FairExecutor
from quintet.guides.check import GuideCheck
from quintet.inputs.images.reader import ImageReader
from quintet.inputs.prepare import Preparer
from quintet.inputs.sequence import Prepared, SequenceSpec
from quintet.service.service import Service

_ids = itertools.count(1 << 20)  # a service of the same engine counts from 1


_preparers: WeakKeyDictionary[Backend, Preparer] = WeakKeyDictionary()


def preparer_of(
    backend: Backend, _guides: GuideCheck | None = None, _executor: FairExecutor | None = None, _images: ImageReader | None = None
) -> Preparer:
    """The same for the same engine, with a place to check guides that is closed with it; a double that prepares by its own script is its
    own."""
    if hasattr(backend, "prepare"):
        return cast("Preparer", backend)
    if backend not in _preparers:
        guides, executor, close = GuideCheck(), FairExecutor(), backend.close
        images = ImageReader(executor)
        made = Preparer(cast("Backend", proxy(backend)), guides, executor, images)

        async def close_both() -> None:
            await close()
            await guides.close()
            images.close()

        backend.close = close_both  # type: ignore[method-assign]
        _preparers[backend] = made
    return _preparers[backend]


async def prepare(backend: Backend, specs: Sequence[SequenceSpec], tenant: str = "") -> Prepared:
    """As the service does it."""
    backend.require_room(1, tenant)
    sequences = await preparer_of(backend).prepare(specs, tenant)
    backend.require_room(len(specs), tenant)
    return Prepared(next(_ids), sequences, tenant=tenant)


def service(backend: Backend, clock: Callable[[], float] = lambda: 0.0) -> Service:
    return Service(backend, preparer_of(backend), clock)
