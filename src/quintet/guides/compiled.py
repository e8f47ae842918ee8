"""Compiled guides, kept for the requests to come; compiled in a thread, beside the steps of the engine."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from quintet.guides.matcher import Compiler, Matcher

CACHE_BYTES = 64 << 20
"""Bound on the text of the guides whose compiled form is kept."""


class Guides:
    """Compiles guides, in a thread of its own, and keeps the compiled ones."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self._kept: OrderedDict[str, Matcher] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def ready(self, grammar: str) -> bool:
        """``matcher`` would not have to compile."""
        return grammar in self._kept

    def start(self, grammars: Sequence[str], then: Callable[[], None]) -> None:
        """Compile in the background, after what was started before; ``then`` is called from there, whatever came of it."""
        self._pool = self._pool or ThreadPoolExecutor(1, "quintet-guides")
        self._pool.submit(self._compile, grammars, then)

    def restart(self) -> None:
        """Leave what is being compiled to itself, for it cannot be stopped, and forget what was to be compiled after it."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def matcher(self, grammar: str) -> Matcher:
        """A matcher at the start of a guide."""
        return self._compiled(grammar).copy()

    def forget(self) -> None:
        """Keep nothing; what sequences follow stays with them."""
        with self._lock:
            self._kept.clear()

    def _compile(self, grammars: Sequence[str], then: Callable[[], None]) -> None:
        try:
            for grammar in grammars:
                self._compiled(grammar)
        finally:
            then()

    def _compiled(self, grammar: str) -> Matcher:
        with self._lock:
            if grammar in self._kept:
                self._kept.move_to_end(grammar)
                return self._kept[grammar]
        compiled = self.compiler.compile(grammar)  # unlocked: others only want to look
        with self._lock:
            self._kept[grammar] = compiled
            while len(self._kept) > 1 and sum(map(len, self._kept)) > CACHE_BYTES:
                self._kept.popitem(last=False)
            return compiled
