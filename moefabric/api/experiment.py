"""Experiments: loaded from a file or built from values, predicted, and run."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from moefabric.api.prediction import Prediction
from moefabric.api.provenance import command_options, provenance
from moefabric.api.signals import graceful_shutdown
from moefabric.config.experiment import ExperimentSpec
from moefabric.config.loader import experiment_of, load_experiment
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import SpecError
from moefabric.core.units import Scale
from moefabric.prediction import experiment as prediction
from moefabric.prediction.workload_loader import workload_on
from moefabric.results.progress import PlainProgressReporter, ProgressReporter
from moefabric.testbed.cluster.ray_fabric import placer

if TYPE_CHECKING:
    from moefabric.api.result import Result

EXTERNAL_PROCESSES = ("ocs", "controller")
"""Roles of processes that something else may start."""


class Experiment:
    """A model, its training and gating, and the fabrics to compare.

    The keyword arguments are the keys of an experiment file::

        experiment = moefabric.Experiment(
            experiment="small",
            model={"name": "mixtral-8x7b", "layers": 2},
            training={"ep": 8, "tp": 4, "sequence": 4096, "micro_batch": 8},
            gating={"matrix": "examples/data/gating-8x8.json"},
            wiring={"nic_rate": "100Gb/s", "regions": [{"servers": 4}]},
            fabrics=[{"name": "eps", "optical": 0, "electrical": 4, "policy": "eps"}],
        )

    Attributes:
        spec: The values of the experiment, with all defaults.
        folder: Relative paths of the experiment start here.
        file: File of the experiment; None if it was built from values.
        settings: Changes to the file, as in `--set`.
        command: Subcommand of `moefabric` that runs the file.
        hosts_file: A file of real servers, on which all fabrics run; None for those of the file.

    Args:
        **keys: The keys of an experiment file, with numbers, text, lists and mappings.

    Raises:
        SpecError: With all faults of the values, as for a file.
    """

    spec: ExperimentSpec
    folder: Path
    file: Path | None = None
    settings: Sequence[str] = ()
    command: str = "run"
    hosts_file: Path | None = None

    def __init__(self, **keys: Any) -> None:
        self.spec, self.folder = experiment_of(keys), Path()

    @classmethod
    def load(
        cls,
        path: str | Path,
        settings: Sequence[str] = (),
        *,
        hosts_file: str | Path | None = None,
        **changes: Any,
    ) -> Self:
        """Return the experiment that a file describes.

        Args:
            path: The YAML file.
            settings: Changes as text, such as `training.iterations=1`.
            hosts_file: A file of real servers, on which all fabrics run.
            **changes: Keys with other values than in the file. A mapping changes the keys that it
                names: `training={"iterations": 1}`. `**{"fabrics[0].policy": "joint"}` changes one
                place.

        Raises:
            SpecError: With all faults of the file and the changes.
        """
        hosts = Path(hosts_file) if hosts_file is not None else None
        file = Path(path)
        experiment = cls.of(load_experiment(file, settings, changes, hosts), file.parent)
        experiment.file, experiment.hosts_file = file, hosts
        changed = [f"{key}={value}" for key, value in changes.items()]
        experiment.settings = (*settings, *changed)
        return experiment

    @classmethod
    def of(cls, spec: ExperimentSpec, folder: str | Path = ".") -> Self:
        """Return the experiment with this specification; relative paths start at `folder`."""
        experiment = cls.__new__(cls)
        experiment.spec, experiment.folder = spec, Path(folder)
        return experiment

    def __repr__(self) -> str:
        fabrics = ", ".join(choice.name for choice in self.spec.fabrics)
        return f"Experiment({self.spec.experiment!r}: {fabrics})"

    def predict(self) -> Prediction:
        """Predict each fabric with the fluid model. Needs no root.

        Raises:
            SpecError: If an input file is wrong.
        """
        return Prediction.of(prediction.predict_fabrics(self.spec, self.folder))

    def demand(self, iteration: int = 0, layer: int = 0) -> DemandMatrix:
        """Return the bytes that servers send each other in the first all-to-all of a layer.

        Args:
            iteration: Number of the iteration, from 0.
            layer: Number of the layer, from 0.

        Raises:
            SpecError: If the experiment has fewer iterations or layers.
        """
        fabric = self.spec.build_fabric(self.spec.fabrics[0], "export", Scale())
        work = workload_on(self.spec, fabric, self.folder)
        for name, number, count in (
            ("--iteration", iteration, work.iterations),
            ("--layer", layer, work.model.layers),
        ):
            if number >= count:
                raise SpecError([(name, f"there are {count}, numbered from 0")])
        return work.layers(iteration)[layer].demand

    @property
    def operations(self) -> int:
        """Number of steps whose progress a run shows."""
        from moefabric.execution import run as runner

        return runner.operations_total(self.spec)

    @property
    def expected_duration(self) -> str:
        """How long `run` takes on this machine, such as `about 20 s`; empty if it can't."""
        from moefabric.execution import run as runner

        return runner.expected_duration(self.spec, self.folder)

    def run(
        self,
        *,
        reporter: ProgressReporter | None = None,
        external: Collection[str] = (),
        flows: bool = False,
        journal: str | Path | None = None,
        resume: bool = False,
        cluster: str | None = None,
        spread: str = "pack",
        open_cluster: bool = False,
    ) -> "Result":
        """Bring the fabrics up one after the other, replay the traffic, and judge the results.

        Needs root. The fabrics are removed, also after an exception, Ctrl-C, SIGTERM and SIGHUP.

        Args:
            reporter: Shows progress. Default: plain lines on standard error.
            external: Roles whose processes something else starts: `ocs`, `controller`.
            flows: Whether the result keeps the record of every flow.
            journal: File to which results are appended while they arise (`.jsonl`).
            resume: Whether to go on where the run of this journal was stopped.
            cluster: Ray cluster whose nodes carry the fabrics: HOST:PORT of its head, or `auto`.
                Default: this machine carries them.
            spread: How regions and EPS are spread over nodes: `pack`, `spread`, `strict-pack`,
                `strict-spread`.
            open_cluster: Whether the cluster may do without a token, by which whoever reaches its
                ports runs programs on its nodes.

        Raises:
            MoefabricError: If the experiment can't run here. An experiment that ran but can't be
                believed raises nothing: its `verdict` is `invalid`.
        """
        if unknown := set(external).difference(EXTERNAL_PROCESSES):
            known = ", ".join(EXTERNAL_PROCESSES)
            raise SpecError([("external", f"{', '.join(sorted(unknown))} is not one of {known}")])
        options = {"flows": flows, "resume": resume, "open_cluster": open_cluster}
        return self._run(reporter, journal, external, cluster, spread, **options)

    def train(
        self,
        *,
        reporter: ProgressReporter | None = None,
        flows: bool = False,
        journal: str | Path | None = None,
        resume: bool = False,
        cluster: str | None = None,
        spread: str = "pack",
        open_cluster: bool = False,
    ) -> "Result":
        """Train the experiment's program on the fabrics, one after the other, as `run` replays.

        Args:
            reporter: Shows progress. Default: plain lines on standard error.
            flows: Whether the result keeps the record of every flow.
            journal: File to which results are appended while they arise (`.jsonl`).
            resume: Whether to go on where the training of this journal was stopped: with the first
                fabric that isn't finished.
            cluster: As in `run`. The program and its data have the same paths on all nodes.
            spread: As in `run`.
            open_cluster: As in `run`.

        Raises:
            MoefabricError: If the program can't train here, or one of its ranks fails for good.
        """
        options = {"flows": flows, "resume": resume, "open_cluster": open_cluster}
        return self._run(reporter, journal, (), cluster, spread, trains=True, **options)

    def _run(
        self,
        reporter: ProgressReporter | None,
        journal: str | Path | None,
        external: Collection[str],
        cluster: str | None,
        spread: str,
        *,
        open_cluster: bool,
        **options: Any,
    ) -> "Result":
        """Run or train, with the arguments of both; `options` are those of the runner."""
        from moefabric.api.result import Result
        from moefabric.execution import run as runner

        shown, file = reporter or PlainProgressReporter(), Path(journal) if journal else None
        place = placer(cluster, spread, open_cluster=open_cluster) if cluster is not None else None
        words = command_options(self.hosts_file, external, cluster, spread, flows=options["flows"])
        command = "train" if "trains" in options else self.command
        source = self.file and provenance(self.spec, self.file, self.settings, command, words)
        with graceful_shutdown():
            result = runner.run(
                self.spec,
                self.folder,
                shown,
                frozenset(external),
                journal=file,
                place=place,
                file=self.file,
                **options,
            )
        manifest = result.manifest.model_copy(update={"provenance": source} if source else {})
        return Result.of(result.model_copy(update={"manifest": manifest}))
