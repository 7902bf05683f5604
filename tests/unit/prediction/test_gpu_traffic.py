"""The bytes between all GPUs of a job, from its tasks."""

from collections import defaultdict

import numpy as np
import pytest

from moefabric.config.loader import load_experiment
from moefabric.core.units import Scale
from moefabric.prediction.gpu_traffic import Parallelism, gpu_traffic
from moefabric.prediction.jobs import Jobs
from moefabric.prediction.workload_loader import workload_on
from moefabric.workload.iterations.iteration import AllReduce, Collective, Compute, Transfer
from moefabric.workload.iterations.substitution import Substitutions
from moefabric.workload.iterations.tasks import owed_bytes
from tests.support.paths import EXAMPLES

GPUS = 8
KINDS: dict[type, Parallelism] = {Collective: "expert", Transfer: "pipeline", AllReduce: "data"}


def jobs(*settings: str) -> Jobs:
    spec = load_experiment(EXAMPLES / "pipeline.yaml", settings)
    fabric = spec.build_fabric(spec.fabrics[1], "test", Scale())
    return Jobs.of(spec, fabric, workload_on(spec, fabric, EXAMPLES))


@pytest.mark.parametrize("settings", [(), ("training.pp=1", "training.dp=1")], ids=["dp", "one"])
def test_bytes_between_servers_are_those_of_the_tasks(settings: tuple[str, ...]) -> None:
    made = jobs(*settings)
    owed: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for job in made.all:
        for task in made.tasks(job, 0, Substitutions()):
            kind = KINDS.get(type(task.work))
            if kind is not None:
                for src, dst, size in owed_bytes(task.work):  # type: ignore[arg-type]
                    owed[kind, src, dst] += size
    names = [server for region in made.regions for server in region.servers]
    traffic = gpu_traffic(made)
    for kind in KINDS.values():
        matrix = traffic[kind]
        by_server = matrix.reshape(len(names), GPUS, len(names), GPUS).sum(axis=(1, 3))
        np.fill_diagonal(by_server, 0.0)
        expected = [[owed[kind, src, dst] for dst in names] for src in names]
        assert by_server == pytest.approx(np.array(expected), rel=1e-9)
    assert owed


@pytest.mark.parametrize("recomputation", [False, True])
def test_tensor_parallelism_is_a_ring_of_a_ranks_gpus(recomputation: bool) -> None:
    made = jobs("training.whole_model=false", f"training.recomputation={recomputation}".lower())
    model, training, tensor = made.work.model, made.work.training, gpu_traffic(made)["tensor"]
    passes = sum(
        1 + (recomputation and task.work.direction == "backward")
        for task in made.tasks(made.all[0], 0, Substitutions())
        if isinstance(task.work, Compute) and task.work.kind in {"attention", "expert"}
        if task.region == "r0"
    )
    sent = passes * training.tensor_all_reduce_bytes(model)
    first = tensor[: training.tp, : training.tp]
    assert first == pytest.approx(sent * np.roll(np.eye(training.tp), 1, axis=1))
    assert np.flatnonzero(tensor.sum(axis=1)).tolist() == list(range(len(tensor)))
    assert tensor[0, training.tp :].sum() == 0.0


def test_all_to_alls_are_between_gpus_of_equal_number_in_their_ranks() -> None:
    made = jobs()
    tp, expert = made.work.training.tp, gpu_traffic(made)["expert"]
    region = len(made.regions[0].servers) * GPUS
    rows, columns = np.nonzero(expert)
    assert rows.size
    assert set((rows - columns) % tp) == {0}
    assert set(rows // region - columns // region) == {0}
    between_ranks = expert[:tp, region - tp : region]
    assert between_ranks == pytest.approx(between_ranks.sum() / tp * np.eye(tp))
