"""The map of the project: its packages and layers, as import-linter's contract has them.

`python -m tests.support.project_map` writes the table and the picture of docs/architecture.md.
"""

import ast
import re
import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from tests.support.paths import REPOSITORY

PAGE: Final = REPOSITORY / "docs/architecture.md"
PICTURE: Final = REPOSITORY / "docs/diagrams/layers.svg"
TABLE: Final = re.compile(r"(?<=<!-- packages -->\n).*?(?=<!-- /packages -->)", re.DOTALL)
_WIDTH, _ROW, _GAP = 880, 44, 12
_STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1b1f24; }
.name { font-weight: 600; }
.note { font-size: 12px; fill: #57606a; }
.box { fill: #ffffff; stroke: #8c959f; }
.pure { fill: #dafbe1; stroke: #4ac26b; }
.arrow { stroke: #57606a; stroke-width: 1.4; }
"""


@dataclass(frozen=True)
class Package:
    """A package of the testbed, and what its docstring says about it."""

    name: str
    docstring: str

    @property
    def headline(self) -> str:
        """The first sentence, without the package's own name and without a full stop."""
        first = " ".join(self.docstring.split("\n\n")[0].split()).rstrip(".")
        text = first.removeprefix(f"{self.name.capitalize()}: ")
        return text[0].upper() + text[1:]

    @property
    def sentences(self) -> list[str]:
        """The sentences of the docstring."""
        return re.split(r"(?<=[.;])\s", self.docstring.strip())


def contracts() -> list[dict[str, object]]:
    """Return the contracts of import-linter."""
    document = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    found: list[dict[str, object]] = document["tool"]["importlinter"]["contracts"]
    return found


def layers() -> list[list[Package]]:
    """Return the packages of each layer, from the top."""
    contract = next(one for one in contracts() if one.get("containers") == ["moefabric"])
    rows = contract["layers"]
    assert isinstance(rows, list)
    return [[_package(name.strip()) for name in row.split("|")] for row in rows]


def pure_packages() -> set[str]:
    """Return the packages that a contract keeps from I/O."""
    contract = next(one for one in contracts() if "pure" in str(one["name"]))
    modules = contract["source_modules"]
    assert isinstance(modules, list)
    return {module.removeprefix("moefabric.") for module in modules}


def _package(name: str) -> Package:
    text = (REPOSITORY / "moefabric" / name / "__init__.py").read_text()
    return Package(name, ast.get_docstring(ast.parse(text)) or "")


def table() -> str:
    """Return the table of packages in Markdown, from the top layer down."""
    rows = [f"| `moefabric.{p.name}` | {p.headline} |" for row in layers() for p in row]
    return "\n".join(["| package | content |", "|---|---|", *rows, ""])


def picture() -> str:
    """Return the picture of the layers as SVG."""
    rows, pure = layers(), pure_packages()
    height = len(rows) * (_ROW + _GAP) + _GAP
    title = "Layers of moefabric; imports go down"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}">',
        f"<title>{title}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, row in enumerate(rows):
        y, width = _GAP + number * (_ROW + _GAP), (_WIDTH - _GAP) / len(row) - _GAP
        for column, package in enumerate(row):
            x = _GAP + column * (width + _GAP)
            shade = "pure" if package.name in pure else "box"
            note = package.headline if len(row) == 1 else package.headline.split(":")[0]
            parts += [
                f'<rect class="{shade}" x="{x:.0f}" y="{y}" width="{width:.0f}" height="{_ROW}"/>',
                f'<text class="name" x="{x + 12:.0f}" y="{y + 18}">{package.name}</text>',
                f'<text class="note" x="{x + 12:.0f}" y="{y + 35}">{escape(note)}</text>',
            ]
        if number + 1 < len(rows):
            middle, bottom = _WIDTH // 2, y + _ROW
            parts.append(
                f'<path class="arrow" d="M{middle},{bottom} V{bottom + _GAP} '
                f'm-3,-4 l3,4 l3,-4" fill="none"/>'
            )
    return "\n".join([*parts, "</svg>", ""])


def write(page: Path = PAGE, drawing: Path = PICTURE) -> None:
    """Write the table into the page, and the picture."""
    page.write_text(TABLE.sub(lambda _: table(), page.read_text()))
    drawing.write_text(picture())


if __name__ == "__main__":
    write()
