"""The docs as a site: all pages are in its navigation, and links out of docs/ name what they lead to. ``make docs`` builds it, strictly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts.site_links import outside, rewritten, with_pipes

ROOT = Path(__file__).parents[2]


def test_the_navigation_has_every_page_once() -> None:
    named = re.findall(r"[\w./-]+\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))


def test_links_out_of_the_docs_become_what_they_name() -> None:
    assert rewritten("see [the test](../tests/a.py#L3)", "b.md") == "see the test (`tests/a.py`)"
    assert rewritten("[`tests/a.py`](../../tests/a.py)", "c/b.md") == "`tests/a.py`"
    for kept in ("[x](cli.md#y)", "[x](../cli.md)", "[x](https://example.org/a.py)", "[x](#y)", "![x](../pictures/a.png)"):
        assert rewritten(kept, "guides/b.md") == kept
    assert outside("b.md", "../README.md") == "README.md"


def test_pipes_in_the_code_of_tables_are_shown_without_the_escape_that_github_needs() -> None:
    assert with_pipes("| `--kv-type f16\\|q8` | ``a\\|b`` | a \\| b |") == "| `--kv-type f16|q8` | ``a|b`` | a \\| b |"
    assert with_pipes("as `a\\|b` in a text") == "as `a\\|b` in a text"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_tables_and_lists_stand_by_themselves_or_the_site_takes_them_and_what_is_beside_them_for_one(page: Path) -> None:
    text = re.sub(r"^```(?s:.*?)^```|^<!-- .*", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE).strip()
    for lines in (part.splitlines() for part in re.split(r"\n{2,}", text)):
        for mark in ("|", "- "):
            assert lines[0].startswith(mark) or not any(line.startswith(mark) for line in lines), lines[0]
        assert not lines[0].startswith("|") or all(line.startswith("|") for line in lines), lines[-1]


def test_colours_of_our_own_are_defined_in_the_light_and_in_the_dark() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (sheet,) = re.findall(r"^extra_css: \[(\S+)\]$", settings, re.MULTILINE)
    style = (ROOT / "docs" / sheet).read_text(encoding="utf-8")
    schemes = re.findall(r"scheme: (\w+), primary: custom", settings)
    assert schemes == ["default", "slate"]
    for selector in ('[data-md-color-primary="custom"] {', '[data-md-color-scheme="slate"][data-md-color-primary="custom"] {'):
        assert "--md-typeset-a-color" in style.split(f"\n{selector}")[1].split("}")[0]
