"""What the native build can run on this CPU."""

from __future__ import annotations

from quintet import _core


def isas() -> list[str]:
    """Instruction sets this build can run on this CPU, best first; the last is always ``portable``."""
    return list(_core.isas())
