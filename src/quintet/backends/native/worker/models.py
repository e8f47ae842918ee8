"""All that a ``ModelSource`` names, in memory: the model, what it sees with, and what it drafts with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from quintet.backends.native.core.loader import Loaded
from quintet.backends.native.wire.sources import ModelSource
from quintet.backends.native.worker.weights import halves, load_draft, load_weights
from quintet.inputs.tokenizer import Vocabulary

V = TypeVar("V", bound=Vocabulary)


def load_models(source: ModelSource, table: Callable[[], V], progress: Callable[[float], None]) -> Loaded[V]:
    """Load what has a path.

    Args:
        table: the tokenizer, or as much of it as is known here; asked for when the weights are there.

    Raises:
        ModelError: see ``load_weights`` and ``load_vision``.
    """
    path, drafts = Path(source.path), Path(source.draft) if source.draft else None
    first, second = halves(path, drafts, progress) if drafts else (progress, progress)
    runner, fingerprint = load_weights(
        path,
        threads=source.threads,
        context=source.context,
        isa=source.isa,
        progress=first,
        packs=source.packs,
        quantize=source.quantize,
        kv_type=source.kv_type,
        wanted=source.wanted,
    )
    draft = load_draft(drafts, runner, second, source.packs) if drafts else None
    if not source.vision:
        return Loaded(runner, table(), name=source.name, fingerprint=fingerprint, cpu=runner.cpu, draft=draft)
    from quintet.backends.native.worker.seeing import load_vision  # only where there is something to see with

    encoder, images, fingerprint = load_vision(Path(source.vision), path, runner, source.quantize, fingerprint, progress)
    return Loaded(runner, table(), name=source.name, fingerprint=fingerprint, cpu=runner.cpu, encoder=encoder, images=images, draft=draft)
