"""``quintet completion``: each shell reads the script and completes by it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.packaging.tools import tool

from quintet.cli.configuration import PREFIX

BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def script(shell: str) -> str:
    command = [str(BIN / "quintet"), "completion", shell]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout


def in_shell(shell: str, code: str) -> list[str]:
    done = subprocess.run(
        [tool(shell), *(["--norc"] if shell == "bash" else []), "-c", code], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(script("bash"))
    code = (
        f"source {tmp_path / 'script'}; COMP_WORDS=(quintet {{}}); COMP_CWORD={{}}; _quintet_completion quintet; echo ${{{{COMPREPLY[@]}}}}"
    )
    assert in_shell("bash", code.format("ser", 1)) == ["serve"]
    assert "--max-connections" in in_shell("bash", code.format("serve --max", 2))


def test_a_shell_that_asks_for_words_is_told_nothing_else(tmp_path: Path) -> None:
    """It would stand in the line that is being typed."""
    asked = {"_QUINTET_COMPLETE": "bash_complete", "COMP_WORDS": "quintet serve --uds-m", "COMP_CWORD": "2"}
    wrong = {f"{PREFIX}PROT": "3", f"{PREFIX}CONFIG": str(tmp_path / "none.toml")}
    done = subprocess.run([str(BIN / "quintet")], capture_output=True, text=True, env={**ENVIRONMENT, **asked, **wrong})
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain,--uds-mode\n", "")


def test_fish_completes_commands_and_options(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(script("fish"))
    assert in_shell("fish", f"source {tmp_path / 'script'}; complete -C 'quintet dialect'") == []
    assert "doctor" in in_shell("fish", f"source {tmp_path / 'script'}; complete -C 'quintet doc'")
    assert "--offline" in in_shell("fish", f"source {tmp_path / 'script'}; complete -C 'quintet pull --off'")


def test_zsh_reads_it_and_gets_the_words(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(script("zsh"))
    assert in_shell("zsh", f"zsh -n {tmp_path / 'script'}") == []
    words = in_shell("zsh", "COMP_WORDS='quintet pull --off' COMP_CWORD=2 _QUINTET_COMPLETE=zsh_complete quintet")
    assert "--offline" in words


def test_an_unknown_shell_is_refused() -> None:
    done = subprocess.run([str(BIN / "quintet"), "completion", "csh"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "'csh' is not one of 'bash', 'zsh', 'fish'" in done.stderr
