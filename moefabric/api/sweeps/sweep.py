"""A sweep from its file to its folder of results."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from moefabric.api.sweeps.campaign import carry_out
from moefabric.api.sweeps.engine import Engine
from moefabric.api.sweeps.folder import SweepFolder, sweep_folder
from moefabric.api.sweeps.page import sweep_page
from moefabric.api.sweeps.plan import SweepPlan, plan_sweep
from moefabric.api.sweeps.ray_engine import RayEngine
from moefabric.api.sweeps.spec import SweepSpec
from moefabric.api.sweeps.summary import SweepSummary
from moefabric.results.progress import ProgressReporter
from moefabric.runtime.atomic_file import write_whole
from moefabric.testbed.cluster.ray_client import connected, local_cluster


def run_sweep(
    spec: SweepSpec,
    folder: Path,
    out: Path,
    reporter: ProgressReporter,
    *,
    cluster: str | None = None,
    resume: bool = False,
) -> SweepSummary:
    """Carry out the runs of a sweep that its folder of results doesn't have.

    After an exception, the folder keeps the results of runs that have ended, and the other runs are
    stopped.

    Args:
        spec: The sweep.
        folder: Folder of its file; relative paths start there.
        out: Folder of the results.
        reporter: Shows progress, a step for each run.
        cluster: Address of a Ray cluster, or `auto`. Default: one of this machine, for the time of
            the sweep.
        resume: Whether `out` may have results, which are kept.

    Raises:
        SpecError: With all faults of all experiments, before anything runs.
        MoefabricError: If there is no cluster, no machine is large enough, or results can't be
            written.
    """
    plan = plan_sweep(spec, folder)
    with sweep_folder(out, plan, resume=resume) as results:
        try:
            if len(results.records) < len(plan.runs):
                with _engine(cluster, plan) as engine:
                    carry_out(plan, engine, results, reporter)
        finally:
            summary = SweepSummary(spec, version("moefabric"), len(plan.runs), results.ordered())
            _write(summary, results)
    return summary


@contextmanager
def _engine(cluster: str | None, plan: SweepPlan) -> Iterator[Engine]:
    with connected(cluster) if cluster else local_cluster() as ray:
        engine = RayEngine(ray, plan.archives)
        try:
            yield engine
        finally:
            engine.close()


def _write(summary: SweepSummary, results: SweepFolder) -> None:
    """Write the files that summarise all results."""
    text = json.dumps(summary.to_json(), indent=1, ensure_ascii=False)
    write_whole(results.path / "sweep.json", f"{text}\n")
    write_whole(results.path / "report.html", sweep_page(summary))
    results.write_parquet()
