"""Types of results, and how runs are judged. `moefabric.Result` loads and shows whole results."""

from moefabric.report.stored_results import stored_lines
from moefabric.report.summary import COLUMNS, FabricSummary, summaries
from moefabric.results.comparison import joined_phases
from moefabric.results.model import (
    CPU_STEAL_LIMIT,
    ExperimentPrediction,
    FabricResult,
    Manifest,
    Provenance,
    RunResult,
    Verdict,
    read_run,
)
from moefabric.results.parts import FlowResult, Json
from moefabric.results.progress import ProgressReporter
from moefabric.results.verdict.fabric_result import fabric_result
from moefabric.results.verdict.reasons import DISTURBED, LATENESS

__all__ = [
    "COLUMNS", "CPU_STEAL_LIMIT", "DISTURBED", "LATENESS", "ExperimentPrediction", "FabricResult",
    "FabricSummary", "FlowResult", "Json", "Manifest", "ProgressReporter", "Provenance",
    "RunResult", "Verdict", "fabric_result", "joined_phases", "read_run", "stored_lines",
    "summaries",
]  # fmt: skip
