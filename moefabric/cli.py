"""The command line: `moefabric COMMAND`. Exit status 0 done, 1 a fault told in one line, 2 usage, 3 ran but the verdict is invalid."""

import sys
from typing import Any

import click

from moefabric.commands import calibrate, cost, doctor, events, fabric, fault, ocs, paper, plan, run
from moefabric.errors import MoefabricError

_INTERRUPTED = 130


class _Door(click.Group):
    """Faults leave as lines, never as tracebacks."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except MoefabricError as fault:
            click.echo("\n".join(f"moefabric: {line}" for line in str(fault).splitlines()), err=True)
        except BrokenPipeError:
            sys.stderr.close()
        sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("moefabric: interrupted; nothing is left running", err=True)
            sys.exit(_INTERRUPTED)


@click.group(cls=_Door, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="moefabric")
def main() -> None:
    """A testbed for networks that change shape while a Mixture-of-Experts model trains.

    Begin with `doctor`. Then `run` an experiment (examples/prototype.yaml), or `predict` it without root. Or bring a fabric `up`,
    work with it (`inspect`, `exec`, `light`, `ocs`, `fault`) and take it `down`.
    """


for _command in (
    run.run, run.predict, plan.plan, cost.cost, paper.paper, doctor.doctor, fabric.up, fabric.down, fabric.inspect, fabric.exec_, fabric.light,
    fault.fault, events.events, ocs.ocs, calibrate.calibrate,
):  # fmt: skip
    main.add_command(_command)
