"""Packed weights as a user of the command sees them."""

from __future__ import annotations

from pathlib import Path

from tests.cli.test_cli import quintet
from tests.reference.tiny_model import TinySpec, write_tiny

WORDS = ("the end", "-n", "8", "--seed", "1", "--kv-cache", "8MiB", "--threads", "1")


def test_what_a_run_packs_is_kept_told_of_and_left_out_where_it_is_not_wanted(tmp_path: Path) -> None:
    model, cache = str(write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny"))), tmp_path / "cache"
    here = {"QUINTET_CACHE": str(cache), "QUINTET_PACK_CACHE": "true", "HF_HOME": str(tmp_path)}
    without = quintet("run", model, *WORDS, "--no-pack-cache", **here)
    assert without.returncode == 0
    assert not cache.exists()
    told = quintet("run", model, *WORDS, QUINTET_PACK_CACHE_SIZE="1kB", **here)
    assert "the packed weights of tiny.gguf are not kept: they take" in told.stderr
    packed = quintet("run", model, *WORDS, **here)
    (pack,) = (cache / "packs").iterdir()
    again = quintet("run", model, *WORDS, **here)
    assert without.stdout == told.stdout == packed.stdout == again.stdout
    assert pack.suffix == ".pack"
    said = f"{cache / 'packs'}, which may be removed at any time"
    assert quintet("list", **here).stdout.replace("\n", " ").rstrip().endswith(said)
    assert f"1 in {cache / 'packs'}, " in quintet("doctor", **here).stdout.replace("\n", " ")


def test_a_size_that_is_none_is_refused_by_its_name() -> None:
    done = quintet("run", "toy", "x", "--pack-cache", "--pack-cache-size", "lots")
    assert done.returncode == 1
    assert done.stderr.startswith("error: --pack-cache-size must be a number above 0 with a unit")
