"""What `moefabric predict` says of the examples, for tests that compare pages with it."""

import json
from functools import cache
from typing import Any

from click.testing import CliRunner

from moefabric.ui.cli.main import main
from tests.support.paths import EXAMPLES


@cache
def predicted_fabrics(example: str, *changes: str) -> dict[str, dict[str, Any]]:
    """Return the JSON of each fabric of an example, with settings such as `training.dp=2`."""
    settings = [part for change in changes for part in ("--set", change)]
    words = ["predict", str(EXAMPLES / f"{example}.yaml"), "--json", *settings]
    outcome = CliRunner().invoke(main, words)
    assert outcome.exit_code == 0, outcome.output
    return {one["fabric"]: one for one in json.loads(outcome.output)["fabrics"]}
