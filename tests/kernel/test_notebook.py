"""The notebook of the documentation with packets: a run, and a fabric to work with."""

import pytest

from moefabric.runtime.run_directory import run_root
from tests.support.namespaces import own_machine
from tests.support.notebook import run_notebook
from tests.support.paths import REPOSITORY

pytest.importorskip("pandas", reason="nightly: needs pandas: packaging/setup all")
pytestmark = [pytest.mark.nightly, pytest.mark.slow]
SHORTER = {
    '"layers": 2': '"layers": 1',
    '"iterations": 3': '"iterations": 1',
    '"policy": "spill"},\n    ],': '"policy": "spill"},\n    ],\n'
    '    scale={"bytes": 1000, "dilation": 2},',
}
NOTEBOOK = REPOSITORY / "docs/notebooks/first-steps.ipynb"


def test_all_cells_run_and_leave_nothing() -> None:
    with own_machine():
        outputs = run_notebook(NOTEBOOK, packets=True, changes=SHORTER)
        assert [path.name for path in run_root().glob("[!.]*")] == []
    by_source = {output.source.splitlines()[0]: output for output in outputs}
    assert ">mixnet<" in by_source["result = experiment.run(flows=True)"].shown["text/html"]
    assert by_source["result.plot_comparison()"].shown["image/svg+xml"].startswith("<svg ")
    lines = outputs[-1].printed.splitlines()
    assert lines[0] == "lit: ['s0/o0~s1/o0', 's2/o0~s3/o0']"
    assert lines[1] == "frames by light: 6"
    assert lines[2] == "frames by the EPS while the NIC is down: 6"
