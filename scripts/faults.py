"""Write docs/faults.md: what may go wrong, what is promised for it (docs/faults.toml), and the tests that prove it.

A test names its rows: ``@pytest.mark.fault("B22")``, also on a case of a parametrised one, or ``pytestmark`` for a whole file. The files
are read, not imported. ``--check`` writes nothing, and fails if the page is another one.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DATA, PAGE = ROOT / "docs" / "faults.toml", ROOT / "docs" / "faults.md"
WITHOUT = "without"
HEAD = """# What may go wrong

What is promised for each fault, and the tests that prove it. The page is made of [faults.toml](faults.toml) and of the tests' own marks by
`make faults`; a test fails on a row that has neither a proof nor a reason why there is none.
"""

Proofs = Mapping[str, list[tuple[str, str]]]
"""Row -> the tests that name it, each its file from the repository's root and its name, or an empty name for the whole file."""


def marked(source: str, file: str) -> Iterator[tuple[str, str]]:
    """Row and test for each mark in a file of tests.

    Raises:
        ValueError: a mark's arguments are not plain strings, or it stands where no test has it.
    """
    tree, found = ast.parse(source, file), 0
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            holders, name = node.decorator_list, node.name
        elif isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pytestmark"]:
            holders, name = [node.value], ""
        else:
            continue
        for mark in _marks(holders):
            found += 1
            yield from ((row, name) for row in _rows(mark, file))
    if found != len(_marks([tree])):
        raise ValueError(f"{file}: a mark of a fault belongs to a test, to a case in its decorator, or to the file's pytestmark")


def _marks(nodes: list[Any]) -> list[ast.Call]:
    """Calls of ``pytest.mark.fault`` anywhere below these nodes."""
    below = (node for one in nodes for node in ast.walk(one))
    return [node for node in below if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault"]


def _rows(mark: ast.Call, file: str) -> list[str]:
    rows = [argument.value for argument in mark.args if isinstance(argument, ast.Constant) and isinstance(argument.value, str)]
    if not rows or len(rows) != len(mark.args) or mark.keywords:
        raise ValueError(f"{file}:{mark.lineno}: a mark of a fault names its rows as plain strings")
    return rows


def proofs(tests: Path) -> dict[str, list[tuple[str, str]]]:
    """The marks of all tests below a folder, in the order of files and lines."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(tests.rglob("*.py")):
        file = path.relative_to(tests.parent).as_posix()
        for row, name in marked(path.read_text(encoding="utf-8"), file):
            if (file, name) not in found.setdefault(row, []):
                found[row].append((file, name))
    return found


def wrong(data: Mapping[str, Any], proved: Proofs) -> list[str]:
    """What data and marks do not agree in: nothing, if all is well."""
    rows = {row for _, row, _ in promises(data)}
    return [
        *(f"{row}: no test proves it, and docs/faults.toml gives no reason" for row in sorted(rows - proved.keys() - data[WITHOUT].keys())),
        *(f"{row}: has a test now, so docs/faults.toml needs no reason" for row in sorted(proved.keys() & data[WITHOUT].keys())),
        *(f"{row}: is no row of docs/faults.toml ({proved[row][0][0]})" for row in sorted(proved.keys() - rows)),
        *(f"{row}: has a reason and is no row" for row in sorted(data[WITHOUT].keys() - rows)),
    ]


def promises(data: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Group's letter, row and promise, in the order of the data."""
    for letter, group in data.items():
        if letter != WITHOUT:
            yield from ((letter, row, promise) for row, promise in group.items() if row != "title")


def page(data: Mapping[str, Any], proved: Proofs) -> str:
    """The whole page as Markdown, a table for each group."""
    lines, before = [HEAD], ""
    for letter, row, promise in promises(data):
        if letter != before:
            lines.append(f"{'' if not before else chr(10)}## {letter}. {data[letter]['title']}\n\n| row | promise | tests |\n|---|---|---|")
            before = letter
        lines.append(f"| {row} | {promise} | {'<br>'.join(map(_link, proved.get(row, ()))) or data[WITHOUT].get(row, '')} |")
    return "\n".join(lines) + "\n"


def _link(proof: tuple[str, str]) -> str:
    file, name = proof
    return f"[{name.removeprefix('test_').replace('_', ' ') or f'all of `{Path(file).name}`'}](../{file})"


def main() -> int:
    data, proved = tomllib.loads(DATA.read_text(encoding="utf-8")), proofs(ROOT / "tests")
    for fault in wrong(data, proved):
        sys.stderr.write(f"error: {fault}\n")
    made = page(data, proved)
    if "--check" in sys.argv[1:]:
        return int(bool(wrong(data, proved)) or made != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(made, encoding="utf-8")
    return int(bool(wrong(data, proved)))


if __name__ == "__main__":
    sys.exit(main())
