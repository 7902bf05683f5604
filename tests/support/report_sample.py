"""Sample of a run's JSON: the prototype's experiment on four fabrics, with seven layers."""

import json
from typing import Any

import numpy as np

from moefabric.report.summary import FabricSummary, summaries
from moefabric.results.model import RunResult
from tests.support.paths import GOLDEN

_SERVERS = 4


def sample(servers: int = _SERVERS) -> dict[str, Any]:
    """Return the whole run; more than four servers are copies of those, beside each other."""
    run: dict[str, Any] = json.loads((GOLDEN / "report/sample.json").read_text())
    copies = range(servers // _SERVERS)
    for row in run["results"]:
        row["wiring"]["servers"] = servers
        row["demand"] = np.tile(row["demand"], (len(copies), len(copies))).tolist()
        row["circuits"] = [
            [_copied(end, copy) for end in pair] for copy in copies for pair in row["circuits"]
        ]
        row["timeline"] = [
            {**span, "server": _copied(span["server"], copy)}
            for copy in copies
            for span in row["timeline"]
        ]
    return run


def _copied(name: str, copy: int) -> str:
    """Return the name of a server, or of its NIC, in a copy of the servers."""
    server, slash, nic = name.partition("/")
    return f"s{int(server[1:]) + _SERVERS * copy}{slash}{nic}"


def fabrics_of(run: dict[str, Any]) -> list[FabricSummary]:
    """Summarise the fabrics of a run given as JSON."""
    return summaries(RunResult.model_validate(run))
