"""`moefabric perf` and `replay`: options that a collective doesn't have, and wrong values."""

import pytest
from click.testing import CliRunner

from moefabric.ui.cli.main import main


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["perf", "alltoall", "--root", "3"], "--root is for broadcast and reduce"),
        (["perf", "alltoall", "--seconds", "1m"], "'1m' is not a valid number of seconds"),
        (["replay", "trace.et", "--wall", "1h"], "'1h' is not a valid number of seconds"),
    ],
)
def test_wrong_use_is_named(words: list[str], fault: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert fault in result.output
