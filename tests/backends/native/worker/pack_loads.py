"""Loading models with packs, and what that did."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.paged import step, whole

from quintet.backends.native.core.runner import NativeRunner
from quintet.backends.native.worker import weights
from quintet.config import CacheFolder

LIMIT = 1 << 30


class Loads:
    """What loading did beside giving a runner."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        self.packed = self.hashed = 0
        self._log = caplog
        pack, read = NativeRunner.pack, weights.Digest._read

        def count_pack(runner: NativeRunner, *args: object) -> None:
            self.packed += 1
            pack(runner, *args)  # type: ignore[arg-type]

        def count_read(digest: weights.Digest) -> None:
            self.hashed += 1
            read(digest)

        monkeypatch.setattr(NativeRunner, "pack", count_pack)
        monkeypatch.setattr(weights.Digest, "_read", count_read)

    def load(self, path: Path, packs: CacheFolder | None) -> tuple[bytes, str]:
        """What a model computes, and its fingerprint."""
        self.packed = self.hashed = 0
        self._log.clear()
        runner, fingerprint = weights.load_weights(path, threads=2, context=64, isa="", progress=lambda _: None, packs=packs)
        runner.allocate(8)
        rows = step(runner, [whole(np.arange(1, 25, dtype=np.int32))], [24])[0]
        return rows.tobytes() + runner.logits(rows).tobytes(), fingerprint

    @property
    def warnings(self) -> list[str]:
        return [record.getMessage() for record in self._log.records if record.levelno >= logging.WARNING]


def pack_of(cache: CacheFolder) -> Path:
    (found,) = Path(cache.folder).glob("*.pack")
    return found
