"""Sweeps: an experiment under many changes."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from moefabric.api.signals import graceful_shutdown
from moefabric.api.sweeps.campaign import carry_out
from moefabric.api.sweeps.engine import Engine
from moefabric.api.sweeps.folder import SweepFolder, parquet_modules, sweep_folder
from moefabric.api.sweeps.plan import SweepPlan, plan_sweep
from moefabric.api.sweeps.ray_engine import RayEngine
from moefabric.api.sweeps.spec import SweepSpec
from moefabric.api.sweeps.summary import SUMMARY, SweepResult
from moefabric.config.file_kinds import read_kind
from moefabric.config.input_file import document_value
from moefabric.config.validation import validate
from moefabric.results.progress import PlainProgressReporter, ProgressReporter
from moefabric.runtime.atomic_file import write_whole
from moefabric.testbed.cluster.ray_client import connected, local_cluster

__all__ = ["Sweep", "SweepResult"]


class Sweep:
    """An experiment, and the changes under which it runs.

    The keyword arguments are the keys of a sweep file::

        sweep = moefabric.Sweep(
            sweep="nic-rates",
            experiment="examples/prototype.yaml",
            mode="predict",
            grid={"wiring.nic_rate": ["100Gb/s", "400Gb/s"]},
        )
        print(sweep.run("out/nic-rates").to_frame())

    Attributes:
        spec: The values of the sweep, with all defaults.
        folder: Relative paths of the sweep start here.

    Args:
        **keys: The keys of a sweep file, with numbers, text, lists and mappings.

    Raises:
        SpecError: With all faults of the values, as for a file.
    """

    spec: SweepSpec
    folder: Path

    def __init__(self, **keys: Any) -> None:
        self.spec, self.folder = validate(SweepSpec, document_value(keys)), Path()

    @classmethod
    def load(cls, path: str | Path, *settings: str) -> Self:
        """Return the sweep that a file describes.

        Args:
            path: The YAML file.
            *settings: Changes as text, such as `repetitions=1`.

        Raises:
            SpecError: With all faults of the file.
        """
        sweep = cls.__new__(cls)
        file = Path(path)
        sweep.spec = validate(SweepSpec, read_kind(file, "sweep", settings), file)
        sweep.folder = file.parent
        return sweep

    def __repr__(self) -> str:
        return f"Sweep({self.spec.sweep!r}: {self.spec.run_count} runs)"

    def run(
        self,
        out: str | Path,
        *,
        cluster: str | None = None,
        open_cluster: bool = False,
        resume: bool = False,
        reporter: ProgressReporter | None = None,
    ) -> SweepResult:
        """Carry out the runs, and write each result into a folder as soon as it has arrived.

        Sweeps that send packets need root. Results are kept after an exception, Ctrl-C, SIGTERM
        and SIGHUP.

        Args:
            out: Folder of the results.
            cluster: Address of a Ray cluster, or `auto`. Default: one of this machine, for the time
                of the sweep.
            open_cluster: Whether the cluster may do without a token, by which whoever reaches its
                ports runs programs on its nodes.
            resume: Whether to go on with a folder that has results, which is refused otherwise:
                runs whose experiment and version are the same are not repeated.
            reporter: Shows progress. Default: plain lines on standard error.

        Raises:
            MoefabricError: If an experiment is wrong, or the sweep can't run here. A run that fails
                raises nothing: see `failed` of the result.
        """
        with graceful_shutdown():
            plan = plan_sweep(self.spec, self.folder)
            parquet_modules()
            with sweep_folder(Path(out), plan, resume=resume) as results:
                try:
                    if len(results.records) < len(plan.runs):
                        with _engine(plan, cluster, open_cluster=open_cluster) as engine:
                            carry_out(plan, engine, results, reporter or PlainProgressReporter())
                finally:
                    ended = results.ordered()
                    result = SweepResult(self.spec, version("moefabric"), len(plan.runs), ended)
                    if ended:
                        _write(result, results)
        return result


@contextmanager
def _engine(plan: SweepPlan, cluster: str | None, *, open_cluster: bool) -> Iterator[Engine]:
    ray_of = connected(cluster, open_cluster=open_cluster) if cluster else local_cluster()
    with ray_of as ray, closing(RayEngine(ray, plan.archives)) as engine:
        yield engine


def _write(result: SweepResult, folder: SweepFolder) -> None:
    """Write the files that summarise all results."""
    text = json.dumps(result.to_json(), indent=1, ensure_ascii=False)
    write_whole(folder.path / SUMMARY, f"{text}\n")
    write_whole(folder.path / "report.html", result.page())
    folder.write_parquet()
