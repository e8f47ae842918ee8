"""The README's table of families."""

from __future__ import annotations

import json

from tests.reference.transformers_tiny import models

from bench.quality.families import FIGURES, README, ROWS, in_readme
from quintet.models.families import FAMILIES
from quintet.models.folder.kinds import KINDS


def test_the_readmes_table_is_the_one_that_the_families_and_the_kept_figures_give() -> None:
    """``python -m bench.quality.families --write`` measures again and writes it, ``--table`` writes it from the figures that are kept."""
    text = README.read_text(encoding="utf-8")
    assert text == in_readme(text, json.loads(FIGURES.read_text())["kl"])


def test_every_family_and_every_kind_of_folder_has_a_row_and_every_row_a_model_of_transformers() -> None:
    assert not FAMILIES.keys() - {row.gguf for row in ROWS}
    assert not KINDS.keys() - {name for row in ROWS for name in row.folder}
    assert sorted(name for row in ROWS for name in row.tiny) == sorted(models())
