"""What AMX's instructions take on this machine, and what others take beside them: nanoseconds, the best of many runs of one thread.

    python -m bench.parts.tiles

docs/decisions/0051-amx.md says what follows from it. Exit code 1: this machine has no AMX, or its use is not permitted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.common.figures import table
from bench.common.install import Store, cache_dir
from bench.common.proc import PeerError, output, say


def main() -> int:
    """Build, run, print."""
    store = Store(cache_dir())
    try:
        program = store.compiled(Path(__file__).with_suffix(".cpp"), "tiles")
        figures = json.loads(output([program], store.log("tiles"), 300))
    except PeerError as error:
        say(str(error))
        return 1
    print(table(("what", "ns"), [(name, f"{value:.2f}") for name, value in figures.items()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
