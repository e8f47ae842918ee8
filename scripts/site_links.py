"""For ``make docs``. Links that lead out of docs/, to sources and tests, become the paths they name; the site loads from no other host.

In a table's code GitHub's Markdown has a pipe escaped, and the site's would show the escape.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")

ROW = re.compile(r"^\|.*", re.MULTILINE)
CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")


def outside(place: str, target: str) -> str | None:
    """What a link from a page names, from the repository's root, if that is outside docs/."""
    parts: list[str] = []
    for part in PurePosixPath("docs", place).parent.joinpath(target).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    inside = parts[:1] == ["docs"] and (parts[-1].endswith((".md", ".png")) or parts == ["docs"])
    return None if inside else "/".join(parts)


def rewritten(text: str, place: str) -> str:
    """A page's text, with such links as text."""

    def replaced(found: re.Match[str]) -> str:
        path = outside(place, found[2])
        if path is None:
            return found[0]
        return found[1] if path.rpartition("/")[2] in found[1] else f"{found[1]} (`{path}`)"

    return LINK.sub(replaced, text)


def with_pipes(text: str) -> str:
    """A page's text, with the pipes of its tables' code as the site's Markdown takes them."""

    def plain(code: re.Match[str]) -> str:
        return code[0].replace("\\|", "|")

    return ROW.sub(lambda row: CODE.sub(plain, row[0]), text)


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """mkdocs calls this for each page."""
    return with_pipes(rewritten(markdown, page.file.src_uri))


def on_post_build(config: Any, **_: object) -> None:
    """mkdocs calls this at the end: nothing of the site may be loaded from another host.

    The theme's script would have two things from elsewhere, neither of which is used: diagrams, and search in pages opened from a disk.

    Raises:
        ValueError: a page loads something.
    """
    site = Path(config["site_dir"])
    for path in site.rglob("*.js"):
        path.write_text(re.sub(r"https://unpkg\.com/", "", path.read_text(encoding="utf-8")), encoding="utf-8")
    for path in site.rglob("*.map"):
        path.unlink()
    loads = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//|url\([\"']?(?:https?:)?//|@import")
    for path in (path for path in site.rglob("*") if path.suffix in (".html", ".css")):
        if found := loads.search(path.read_text(encoding="utf-8")):
            raise ValueError(f"{path.relative_to(site)} loads from another host: {found[0]}")
