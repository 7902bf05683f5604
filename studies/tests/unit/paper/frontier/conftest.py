"""The study of the smallest region: of one model, and of all, which takes half a minute."""

import shutil

import pytest
import yaml
from moefabric_studies.paper.frontier.results import FrontierResults
from moefabric_studies.paper.frontier.study import run_study

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
        return run_study(folder, PlainProgressReporter(), sizes=(8,))
