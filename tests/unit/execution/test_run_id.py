"""The id of a run in the lines that it logs."""

import pytest

import moefabric.execution.run
from moefabric import Experiment
from moefabric.core.errors import FabricError
from moefabric.runtime.structured_log import current_ids
from tests.support.paths import EXAMPLES


def test_lines_of_a_run_have_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_testbed(*_arguments: object, **_named: object) -> None:
        raise FabricError(f"run {current_ids()['run']}")

    monkeypatch.setattr(moefabric.execution.run, "running_testbed", no_testbed)
    with pytest.raises(FabricError, match=r"^run [0-9a-f]{16}$"):
        Experiment.load(EXAMPLES / "ci/experiment.yaml").run()
    assert "run" not in current_ids()
