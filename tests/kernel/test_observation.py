"""What one can see of a running fabric: the logs of its processes, its metrics, its packets."""

import json
import os
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from moefabric import Lab, load_fabric
from moefabric.cli.main import main
from tests.support.namespaces import own_machine
from tests.support.paths import EXAMPLES

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]


@pytest.fixture(scope="module", autouse=True)
def machine() -> Iterator[None]:
    with own_machine():
        yield


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with load_fabric(EXAMPLES / "fabric.yaml", fabric="seen", scale={"bytes": 2000}).up() as lab:
        yield lab


def output(*words: str) -> str:
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_logs_show_a_reconfiguration_in_controller_and_ocs(lab: Lab) -> None:
    lab.light("s0~s1")
    lines = [json.loads(line) for line in output("logs", "--json").splitlines()]
    lit = next(line for line in lines if line["message"].startswith("lit: s0/o0~s1/o0"))
    one = output("logs", "--reconfiguration", lit["reconfiguration"], "--process", "controller-*")
    steps = [line.split()[3:5] for line in one.splitlines()]
    assert steps == [["ocs0:", "disconnect"], ["lit:", "s0/o0~s1/o0;"]]
    ocs = [line["message"] for line in lines if line["process"] == "ocs0"]
    assert ocs[-2:] == ["changed", "settled"]
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
