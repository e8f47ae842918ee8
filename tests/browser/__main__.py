"""``python -m tests.browser [pytest arguments]``: the playground in Chromium, against servers of its own.

Chromium is the system's; playwright, axe and the SDKs that the page writes code for are installed in ``build/browser``, and again when
they change. ``--pictures`` renews the pictures of docs/playground.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tests.clients.__main__ import served
from tests.support.bundled import bundled_path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "browser"
NEEDS = (
    *("pytest>=8", "playwright>=1.50", "axe-playwright-python==0.1.8", "numpy>=1.26"),
    *("openai>=3,<4", "together>=3,<4", "cerebras-cloud-sdk>=1,<2", "fireworks-ai>=1,<2"),
)
FILES = (
    *("pictures.py", "write.py", "editing.py", "prompts.py", "characters.py", "tree.py", "views.py", "controls.py", "written_code.py"),
    *("access.py", "long_texts.py", "reference.py"),
)
KEY = "sk-browser-test"
# Three of the bundled model's own tokens in the parts of fill-in-the-middle: what it fills in is nonsense, and the way there is real.
GAP_TOKENS = (("fim_pre", "<file_sep>"), ("fim_suf", "<filename>"), ("fim_mid", "<gh_stars>"))


def main(arguments: list[str]) -> int:
    chromium = os.environ.get("QUINTET_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("error: there is no chromium; on Debian: apt-get install chromium. QUINTET_CHROMIUM names one elsewhere.", file=sys.stderr)
        return 2
    pictures = "--pictures" in arguments
    chosen = [argument for argument in arguments if argument != "--pictures"]
    python = installed()
    with served("smollm2", f"gap={gap_model()}", "--offline") as plain, served("--toy", "--api-key", KEY) as keyed:
        env = {**os.environ, "QUINTET_URL": plain, "QUINTET_URL_WITH_KEY": keyed, "QUINTET_SECRET": KEY, "QUINTET_CHROMIUM": chromium}
        env["QUINTET_PICTURES"] = str(ROOT / "docs" / "pictures" if pictures else BUILD / "pictures")
        command = [str(python), "-m", "pytest", "-c", str(HERE / "pytest.ini"), "--rootdir", str(HERE), "-v", "-rP", "--tb=short"]
        files = [] if any(argument.endswith(".py") for argument in chosen) else FILES
        return subprocess.run([*command, *chosen, *files], cwd=HERE, env=env, check=False).returncode


def installed() -> Path:
    """The Python of an environment with everything in it."""
    stamp, wanted = BUILD / "stamp", "\n".join([sys.version, *NEEDS])
    python = BUILD / "venv" / "bin" / "python"
    if not (stamp.exists() and stamp.read_text() == wanted):
        venv.create(BUILD / "venv", with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *NEEDS], check=True)
        stamp.write_text(wanted)
    return python


def gap_model() -> Path:
    """The bundled model, as one that fills in the middle."""
    path = BUILD / "gap.gguf"
    if not path.exists():
        tokens = [part for name, token in GAP_TOKENS for part in ("--special-token", name, token)]
        command = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--force", *tokens, str(bundled_path()), str(path)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
