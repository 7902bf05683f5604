"""`calibrate`: what the hardware does against what was asked of it."""

import json
from collections.abc import Callable
from typing import Any

import click

from moefabric.errors import SpecError
from moefabric.units import duration_ns, duration_text


@click.group()
def calibrate() -> None:
    """Measure the hardware against what was asked of it."""


def _duration(_: click.Context, option: click.Parameter, value: Any) -> Any:
    try:
        return (
            tuple(duration_ns(each) for each in value.split(","))
            if option.name == "settle"
            else duration_ns(value)
        )
    except ValueError as fault:
        raise click.BadParameter(str(fault)) from fault


@calibrate.command()
@click.option(
    "--settle",
    default="1ms,10ms,25ms,100ms",
    show_default=True,
    callback=_duration,
    help="Settle times of switches made for this.",
)
@click.option(
    "--moves",
    type=click.IntRange(2, 10_000),
    default=100,
    show_default=True,
    help="How often the light of each moves.",
)
@click.option(
    "--spacing", default="50us", show_default=True, callback=_duration, help="Time between two frames."
)
@click.option(
    "--name",
    help="A fabric that runs, whose light is moved under whatever traffic it has; else one is made for this.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ocs(settle: tuple[int, ...], moves: int, spacing: int, name: str | None, as_json: bool) -> None:
    """Dark time of optical switches as packets see it, against the one asked for."""
    from moefabric.dark_time import table

    if spacing < 10_000:
        raise SpecError(
            [("--spacing", f"{duration_text(spacing)} is too dense: nobody here sends a frame every 10 us")]
        )
    say: Callable[[str], None] = (lambda _: None) if as_json else click.echo
    made = _running(name, moves, spacing) if name else _own(list(settle), moves, spacing)
    say(table(made))
    if as_json:
        click.echo(json.dumps([each.to_json() for each in made]))


def _running(name: str, moves: int, spacing: int) -> list[Any]:
    from moefabric.commands.fabric import wiring_of
    from moefabric.experiment.calibration import calibrate as calibrated
    from moefabric.management import RunDir

    wiring = wiring_of(name)
    regions = [region for region in wiring.fabric.regions if region.ocs]
    if not regions:
        raise SpecError([("--name", f"{name} has no optical switch")])
    return [calibrated(wiring, RunDir.named(name), region, moves, spacing) for region in regions]


def _own(settle: list[int], moves: int, spacing: int) -> list[Any]:
    from emulator import lifecycle
    from emulator.processes import Role
    from emulator.run_dir import held
    from moefabric.experiment.calibration import NAME, settles
    from moefabric.experiment.programs import UP_TIMEOUT_S, processes
    from moefabric.management import RunDir

    if NAME in lifecycle.running():
        raise SpecError(
            [("", f"{NAME} is up already: `moefabric down {NAME}` first, or calibrate it with --name")]
        )
    lifecycle.up(
        settles(settle),
        lambda wiring, run: [one for one in processes(wiring, run) if one.role is Role.OCS],
        UP_TIMEOUT_S,
    )
    try:
        with held(RunDir.named(NAME)):
            return _running(NAME, moves, spacing)
    finally:
        lifecycle.down(NAME)
