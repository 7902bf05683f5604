import re
from pathlib import Path
from typing import Any

import pytest

from moefabric.workload.collectives.built_in import DEFAULTS
from tests.support.schedules import BUILT_IN

GUIDE = (Path(__file__).parents[3] / "docs/guides/collectives.md").read_text()


def test_examples_run_and_print_what_the_guide_says(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL):
        exec(compile(block, "collectives.md", "exec"), names)
    [printed] = re.findall(r"```text\n(.*?)```", GUIDE, re.DOTALL)
    assert capsys.readouterr().out == printed
    # The all-reduce and the all-to-all share ports; computation hides the first of them in part.
    assert 2e-3 < names["times"].seconds < 8e-3


def test_guide_names_all_schedules() -> None:
    table = GUIDE.partition("## Schedules")[2].partition("Without a choice")[0]
    assert sorted(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)) == sorted(BUILT_IN)
    assert {algorithm.name for algorithm in DEFAULTS.values()} == {
        "direct",
        "ring",
        "chain",
        "dissemination",
    }
