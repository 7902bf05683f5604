"""Texts of tables and captions: each is used, and each table and picture has its own."""

import re
from pathlib import Path

import moefabric_studies
import pytest
import yaml
from moefabric_studies.grids import Grid, captions, grid

PACKAGE = Path(moefabric_studies.__file__).parent
FILES = sorted(PACKAGE.rglob("tables.yaml"))
SOURCES = {file: file.read_text() for file in PACKAGE.rglob("*.py") if file.name != "grids.py"}


def test_grid_has_the_texts_of_its_file_with_values() -> None:
    found = grid(
        "systems/composition/combinations", [("none", "1")], header=("a", "b"), baseline="2.000 s"
    )
    assert found.title == "Combinations"
    assert found.note.startswith("Iterations of the EPS without any system take 2.000 s.")
    assert (found.name, found.source, found.header) == ("combinations", "", ("a", "b"))
    assert found.to_json()["rows"] == (("none", "1"),)


def test_name_of_a_grid_can_differ_from_that_of_its_texts() -> None:
    found: Grid = grid("systems/link/incast", [], name="deep")
    assert found.name == "deep"
    assert found.header[0] == "queue"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.parent.relative_to(PACKAGE)))
def test_texts_are_those_of_the_tables_and_pictures_that_the_code_makes(file: Path) -> None:
    folder = file.parent.relative_to(PACKAGE).as_posix()
    texts = yaml.safe_load(file.read_text())
    used = re.findall(rf'grid\(\s*"{folder}/([\w-]+)"', "\n".join(SOURCES.values()))
    assert sorted(used) == sorted(set(texts) - {"pictures"})
    code = "\n".join(text for source, text in SOURCES.items() if source.parent == file.parent)
    for name in captions(folder) if "pictures" in texts else ():
        assert f'"{name}"' in code
    for text in (texts[name] for name in used):
        assert set(text) <= {"title", "source", "header", "note", "published"}
        assert all(len(row) == len(text["header"]) for row in text.get("published", ()))
        assert all(isinstance(heading, str) for heading in text.get("header", ()))
