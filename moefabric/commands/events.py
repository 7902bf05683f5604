"""`events`: what happened to the optical switches."""

import json
from pathlib import Path

import click

from moefabric.commands.fabric import only_running, wiring_of
from moefabric.management import RunDir


@click.command(short_help="What happened to the optical switches.")
@click.option("--follow", "-f", is_flag=True, help="Then go on with what happens next, until interrupted.")
@click.option("--name", help="The fabric, where more than one is up.")
def events(follow: bool, name: str | None) -> None:
    """What happened to the optical switches, as JSON lines: changes, light, faults, alarms."""
    from emulator import asking

    fabric = name or only_running()
    regions = [region for region in wiring_of(fabric).fabric.regions if region.ocs is not None]
    plants: dict[str, Path] = {
        region.ocs.name: RunDir.named(fabric).plant(region) for region in regions if region.ocs is not None
    }
    for switch, event in asking.events(plants, follow=follow):
        click.echo(json.dumps({"ocs": switch, **event}))
