"""The guides' library is the one that the package was built with, whatever else is installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import requires


def test_guides_are_compiled_where_no_llguidance_is_installed() -> None:
    code = (
        "import sys; sys.modules['llguidance'] = None; "
        "from quintet.guides.matcher import Compiler; "
        "matcher = Compiler([b'a', b'b', b''], frozenset({2}), 3).compile('start: \"ab\"'); "
        "print(matcher.consume(0), matcher.consume(0))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["True", "False"]


def test_a_version_of_it_is_asked_of_nobody_so_that_vllm_may_ask_for_another() -> None:
    wanted = requires("quintet") or []
    assert [line for line in wanted if line.startswith("vllm") and "extra ==" in line]
    assert not [line for line in wanted if line.startswith("llguidance") and "extra == 'dev'" not in line.replace('"', "'")]
