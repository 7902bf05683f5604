"""The study of the smallest region: of one model, stopped once, and of all, in half a minute."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from moefabric_studies.paper.frontier.results import FrontierResults
from moefabric_studies.paper.frontier.study import run_study

from moefabric.api.units import file_digests, finished_units
from moefabric.results.progress import PlainProgressReporter
from tests.support.paths import EXAMPLES


@pytest.fixture(scope="session", params=["one", pytest.param("all", marks=pytest.mark.nightly)])
def study(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> FrontierResults:
    folder = EXAMPLES / "paper"
    if request.param == "all":
        return run_study(folder, PlainProgressReporter(), sizes=(8,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moefabric_studies.paper.frontier.study._TRACE_STEPS", 400)
        copy = tmp_path_factory.mktemp("examples")
        (copy / "data").symlink_to(EXAMPLES / "data")
        folder = shutil.copytree(folder, copy / "paper")
        jobs = yaml.safe_load((folder / "jobs.yaml").read_text())
        jobs["jobs"] = [job for job in jobs["jobs"] if job["name"] == "mixtral-8x22b"]
        (folder / "jobs.yaml").write_text(yaml.safe_dump(jobs))
        return stopped_study(folder, copy / "frontier.json")


class Stop(PlainProgressReporter):
    """Stops a study at its third step."""

    def advance(self, text: str) -> None:
        if text.endswith("permutation, exchange"):
            raise KeyboardInterrupt


def stopped_study(folder: Path, json_file: Path) -> FrontierResults:
    """Return the results of a study that was stopped and went on."""
    identity = {"files": file_digests(folder.iterdir())}
    with suppress(KeyboardInterrupt), finished_units(json_file, identity, resume=False) as units:
        run_study(folder, Stop(), sizes=(8,), units=units)
    with finished_units(json_file, identity, resume=True) as units:
        assert len(units.results) == 3
        results = run_study(folder, PlainProgressReporter(), sizes=(8,), units=units)
        assert len(units.results) == 6
    return results
