"""`moefabric trace`: traffic in the formats of other simulators."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from moefabric.cli.options import FILE
from moefabric.cli.output import STANDARD_OUTPUT, check_writable, write_output
from moefabric.core.errors import SpecError

if TYPE_CHECKING:
    from moefabric.core.demand import DemandMatrix

_FORMATS: Final = ("cm", "goal")


@click.group(short_help="Export traffic for other simulators.")
def trace() -> None:
    """Export traffic for other simulators."""


@trace.command(short_help="Write an all-to-all for htsim or LogGOPSim.")
@click.argument("file", type=FILE)
@click.option(
    "--format", "kind", type=click.Choice(_FORMATS), required=True,
    help="cm: connection matrix of htsim. goal: program of LogGOPSim.",
)  # fmt: skip
@click.option("--iteration", type=click.IntRange(0), default=0, help="Iteration of the experiment.")
@click.option("--layer", type=click.IntRange(0), default=0, help="Layer of the model.")
@click.option(
    "--collective", type=click.Choice(("dispatch", "combine")), default="dispatch",
    help="Tokens on their way to experts, or back.",
)  # fmt: skip
@click.option("--output", "-o", type=FILE, default=STANDARD_OUTPUT, help="File to write.")
def export(
    file: Path, kind: str, iteration: int, layer: int, collective: str, output: Path
) -> None:
    """Write the bytes between servers of one all-to-all. Needs no root.

    FILE is an experiment, or a demand: a JSON array of rows.
    """
    from moefabric.traces.connection_matrix import demand_matrix, matrix_text
    from moefabric.traces.goal import goal_text
    from moefabric.traces.messages import demand_graph

    check_writable(output)
    if file.suffix == ".json":
        demand = _demand_of_file(file)
    else:
        demand = _demand_of_experiment(file, iteration, layer)
        demand = demand if collective == "dispatch" else demand.combine()
    if kind == "cm":
        write_output(output, matrix_text(demand_matrix(demand)))
    else:
        write_output(output, goal_text(demand_graph(demand)))


def _demand_of_file(file: Path) -> "DemandMatrix":
    from moefabric.config.demand_file import read_demand
    from moefabric.core.demand import DemandMatrix

    rows = read_demand(file)
    return DemandMatrix([f"s{n}" for n in range(len(rows))], rows)


def _demand_of_experiment(file: Path, iteration: int, layer: int) -> "DemandMatrix":
    from moefabric.config.loader import load_experiment
    from moefabric.core.units import Scale
    from moefabric.runner.workload_loader import workload_on

    spec = load_experiment(file)
    fabric = spec.build_fabric(spec.fabrics[0], "export", Scale())
    work = workload_on(spec, fabric, file.parent)
    for name, number, count in (
        ("--iteration", iteration, work.iterations), ("--layer", layer, work.model.layers),
    ):  # fmt: skip
        if number >= count:
            raise SpecError([(name, f"there are {count}, numbered from 0")])
    return work.layers(iteration)[layer].demand
