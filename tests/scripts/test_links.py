"""Where pages lead: to files and headings that are there, to modules that can be run, to names that are defined where they say."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "bench/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\[\]]*\])*\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
PLACE = re.compile(r"`([\w/]+\.(?:py|h|cpp)): ([\w:.]+)")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


@cache
def prose(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchor(heading: str) -> str:
    """As GitHub makes it, and mkdocs with the slugs that mkdocs.yml asks for."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(anchor(heading) for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE))


@each_page
def test_a_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    for path, heading in LINK.findall(prose(page)):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not heading or target.suffix != ".md" or heading in anchors(target), f"{path}#{heading}"


@each_page
def test_a_module_to_be_run_is_there(page: Path) -> None:
    for module in re.findall(r"python -m ((?:bench|scripts|tests)\.[\w.]*\w)", page.read_text(encoding="utf-8")):
        place = ROOT / module.replace(".", "/")
        assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), module


@each_page
def test_a_name_is_defined_in_the_file_that_it_is_said_to_be_in(page: Path) -> None:
    for file, name in PLACE.findall(prose(page)):
        found = [path for top in ("src/quintet", "csrc", "tests", "bench") for path in (ROOT / top).rglob(Path(file).name)]
        texts = [path.read_text(encoding="utf-8") for path in found if f"/{path.relative_to(ROOT).as_posix()}".endswith(f"/{file}")]
        if page.parent.name == "decisions" and not texts:  # of another program, or as it was then
            continue
        last = re.escape(re.split("[.:]+", name)[-1])
        defined = rf"\b(?:class|def|struct) {last}\b|^ *{last}\b(?:: .*)? = |^[\w:<>*& ]* \*?(?:\w+::)*{last}\([^;]*$"
        assert any(re.search(defined, text, re.MULTILINE) for text in texts), f"{file}: {name}"


def test_what_leads_nowhere_is_found() -> None:
    assert LINK.findall(r"[a](b.md#c) [d](#e) [f](https://g) \[h\](i.md)") == [("b.md", "c"), ("", "e")]
    assert anchor("`quintet serve [MODEL]...`") == "quintet-serve-model"
    assert anchor("A [link](x.md), and `code_here`") == "a-link-and-code_here"
    assert PLACE.findall("`a/b.py: C.d` and `x.h: y`, not `z.py`: no") == [("a/b.py", "C.d"), ("x.h", "y")]
