"""The command `moefabric`.

Exit status: 0 success, 1 an error that is reported in one line, 2 wrong usage, 3 an invalid
verdict, 4 a regression (`compare`).
"""

import sys
from typing import Any, Final

import click

from moefabric.cli import (
    calibrate,
    capture,
    compare,
    cost,
    dashboard,
    doctor,
    fabric,
    fault,
    frontier,
    launch,
    logs,
    metrics,
    model,
    ocs,
    oracle,
    paper,
    perf,
    plan,
    policy,
    replay,
    report,
    run,
    schema,
    sweep,
    system,
    trace,
    train,
)
from moefabric.core.errors import MoefabricError

_INTERRUPTED: Final = 130


class _ErrorReportingGroup(click.Group):
    """Reports errors as lines, without tracebacks."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except MoefabricError as error:
            for line in str(error).splitlines():
                click.echo(f"moefabric: {line}", err=True)
        except BrokenPipeError:
            sys.stderr.close()
        sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("moefabric: interrupted; nothing is left running", err=True)
            sys.exit(_INTERRUPTED)


_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.group(cls=_ErrorReportingGroup, context_settings=_SETTINGS)
@click.version_option(package_name="moefabric")
def main() -> None:
    """Emulate optically switched networks for training Mixture-of-Experts models.

    Start with `doctor`. Then `run` an experiment such as examples/prototype.yaml, or `predict` its
    results without root. To work with a fabric yourself, start it with `up`, use `inspect`, `exec`,
    `light`, `ocs` and `fault`, and remove it with `down`.
    """


for _command in (
    run.run, run.predict, report.report, plan.plan, policy.policy, cost.cost, paper.paper,
    train.train, doctor.doctor, fabric.up, fabric.down, fabric.inspect, fabric.check, fabric.exec_,
    fabric.light, capture.capture, launch.hostfile, launch.mpirun, launch.torchrun,
    perf.perf, replay.replay, fault.fault, logs.logs, metrics.metrics,
    ocs.events, ocs.ocs, calibrate.calibrate,
    schema.schema,
    model.model, oracle.oracle, trace.trace, frontier.frontier, compare.compare,
    dashboard.dashboard, system.system, sweep.sweep,
):  # fmt: skip
    main.add_command(_command)
