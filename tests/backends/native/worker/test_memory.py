"""What is given back when a model is loaded."""

from __future__ import annotations

import gc
import weakref

from quintet.backends.native.worker.memory import trim


class Engine:
    """As a model's: its parts know each other."""

    def __init__(self) -> None:
        self.itself = self


def test_what_was_there_at_an_earlier_trim_and_is_not_needed_any_more_goes_with_the_next() -> None:
    engine = Engine()
    there = weakref.ref(engine)
    trim()
    assert gc.get_freeze_count(), "what stays is looked at again in no round of the collector"
    del engine
    trim()
    gc.unfreeze()
    assert there() is None
