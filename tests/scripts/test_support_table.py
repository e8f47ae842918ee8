"""The README's table of fields."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WORDS = {"yes", "partly", "ignored", "refused", "no effect"}


@pytest.fixture
def support() -> ModuleType:
    spec = importlib.util.spec_from_file_location("support", ROOT / "scripts" / "support.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def data() -> dict[str, Any]:
    return tomllib.loads((ROOT / "docs" / "support.toml").read_text(encoding="utf-8"))


def test_the_readme_has_the_table_that_the_field_tables_and_the_data_give(support: ModuleType, data: dict[str, Any]) -> None:
    assert support.BEGIN + support.table(data) + support.END in (ROOT / "README.md").read_text(encoding="utf-8")


def test_each_claim_is_one_of_a_few_words_and_has_its_source(data: dict[str, Any]) -> None:
    for field, claims in data["fields"].items():
        assert claims.keys() == data["servers"].keys(), field
        for server, (does, source) in claims.items():
            assert does.split(",")[0].split(";")[0].split(":")[0] in WORDS, (field, server)
            assert source in data["servers"][server]["sources"], (field, server)


def test_a_field_without_claims_or_a_claim_without_its_field_is_noticed(support: ModuleType, data: dict[str, Any]) -> None:
    lacking = {**data, "fields": {name: one for name, one in data["fields"].items() if name != "echo"}}
    with pytest.raises(ValueError, match="differ in echo"):
        support.table(lacking)
    with pytest.raises(ValueError, match="differ in gone"):
        support.table({**data, "fields": {**data["fields"], "gone": {}}})
