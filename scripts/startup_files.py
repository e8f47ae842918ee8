"""Fail if anything of this environment runs whenever Python starts that nobody here put there.

A ``.pth`` file in site-packages runs its lines that begin with ``import``; so do ``sitecustomize`` and ``usercustomize``. A package with a
backdoor may bring one, and it runs though the package is never imported.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path

KNOWN = {
    "_editable_skbc_quintet.pth": "our own sources, by scikit-build-core",
    "distutils-precedence.pth": "setuptools, which venv brings before Python 3.12",
    "_virtualenv.pth": "virtualenv, where that made the environment",
}


def unknown(folder: Path) -> list[str]:
    """Names of the files in a site-packages folder that run at the start and are not known."""
    found = [path for path in folder.glob("*.pth") if re.search(r"^import[ \t]", path.read_text(errors="replace"), re.MULTILINE)]
    found += [path for name in ("sitecustomize", "usercustomize") for path in folder.glob(f"{name}*")]
    return sorted(path.name for path in found if path.name not in KNOWN)


def main() -> int:
    folder = Path(sysconfig.get_path("purelib"))
    if names := unknown(folder):
        sys.stderr.write(f"error: {', '.join(names)} in {folder} would run whenever Python starts and is not ours; look at it first\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
