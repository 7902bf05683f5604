"""`moefabric trace export`: all-to-alls of experiments and of demand files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from moefabric.traces.goal import GoalReader
from moefabric.ui.cli.main import main
from tests.support.graph_bytes import message_bytes
from tests.support.paths import EXAMPLES


@pytest.mark.parametrize(("kind", "first"), [("cm", "Nodes 4"), ("goal", "num_ranks 4")])
def test_command_exports_the_same_demand_of_experiment_and_file(
    kind: str, first: str, tmp_path: Path
) -> None:
    outputs = []
    for name in ("prototype.yaml", "data/demand-4x4.json"):
        out = tmp_path / "out"
        arguments = ["trace", "export", str(EXAMPLES / name), "--format", kind, "-o", str(out)]
        assert CliRunner().invoke(main, arguments).exit_code == 0
        outputs.append(out.read_text())
    assert outputs[0] == outputs[1]
    assert outputs[0].splitlines()[0] == first


def test_command_exports_the_combine_with_rows_and_columns_exchanged(tmp_path: Path) -> None:
    matrices = []
    for collective in ("dispatch", "combine"):
        out = tmp_path / collective
        arguments = ["trace", "export", str(EXAMPLES / "prototype.yaml"), "--format", "goal"]
        arguments += ["--collective", collective, "-o", str(out)]
        assert CliRunner().invoke(main, arguments).exit_code == 0
        matrices.append(message_bytes(GoalReader().read(out)))
    assert np.array_equal(matrices[1], matrices[0].T)


def test_command_refuses_a_layer_that_the_model_lacks() -> None:
    arguments = ["trace", "export", str(EXAMPLES / "prototype.yaml"), "--format", "cm"]
    result = CliRunner().invoke(main, [*arguments, "--layer", "7"])
    assert result.exit_code == 1
    assert "--layer: there are 7, numbered from 0" in result.output
