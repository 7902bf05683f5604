import os
import shutil
from pathlib import Path

import pytest

from moefabric.core.errors import SpecError
from moefabric.ui.dashboard import saved_runs
from moefabric.ui.dashboard.saved_runs import SavedRuns
from tests.support.paths import REPOSITORY

SAMPLE = REPOSITORY / "tests/golden/report/sample.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two results, the older one in a subfolder, beside a result outside."""
    folder = tmp_path / "out"
    (folder / "old").mkdir(parents=True)
    for place in (tmp_path / "outside.json", folder / "new.json", folder / "old/run.json"):
        shutil.copy(SAMPLE, place)
    os.utime(folder / "old/run.json", (1, 1))
    (folder / "demand.json").write_text("[[0, 1], [1, 0]]")
    (folder / "run.log").write_text('{"experiment": "x"}')
    return folder


def test_lists_results_only_the_newest_first(folder: Path) -> None:
    entries = SavedRuns(folder).entries()
    assert [entry["file"] for entry in entries] == ["new.json", "old/run.json"]
    assert entries[1]["experiment"] == "prototype"
    assert (entries[1]["modified"], entries[1]["size"]) == (1, SAMPLE.stat().st_size)


def test_a_folder_that_does_not_exist_has_no_results(tmp_path: Path) -> None:
    assert SavedRuns(tmp_path / "missing").entries() == []


def test_a_page_has_no_script(folder: Path) -> None:
    runs = SavedRuns(folder)
    page = runs.pages.get(runs.add_page("new.json"))
    assert page is not None
    assert "<h1" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    "file", ["../outside.json", "linked.json", "run.log", "missing.json", "old"]
)
def test_other_files_are_refused(folder: Path, file: str) -> None:
    (folder / "linked.json").symlink_to(folder.parent / "outside.json")
    with pytest.raises(SpecError, match="is not a result in"):
        SavedRuns(folder).add_page(file)


def test_pages_are_found_by_their_key_until_newer_ones_replace_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_runs, "_MOST_PAGES", 1)
    runs = SavedRuns(folder)
    first, second = runs.add_page("new.json"), runs.add_page("old/run.json")
    assert runs.pages.get(first) is None
    assert runs.pages.get(second) is not None
    assert runs.pages.get("guess") is None
