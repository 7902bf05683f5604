"""`fault list`: all that a running fabric suffers from now."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from moefabric.commands.fabric import only_running
from moefabric.management import RunDir


@click.command("list")
@click.option("--name", help="The fabric, where more than one is up.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(name: str | None, as_json: bool) -> None:
    """List what a fabric suffers from now."""
    from emulator import injection
    from moefabric.experiment import breaking

    run_dir = RunDir.named(name or only_running())
    of_the_job = [{"kind": str(one.kind), "what": list(one.what)} for one in breaking.standing(run_dir)]
    told([*injection.injected(run_dir), *of_the_job], as_json=as_json)


def told(faults: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print faults, as a person or a program reads them."""
    if as_json:
        click.echo(json.dumps(list(faults)))
        return
    for one in faults:
        click.echo(f"{one['kind']} {' '.join(one['what'])}")
    if not faults:
        click.echo("no faults")
