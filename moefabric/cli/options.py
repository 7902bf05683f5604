"""Options that several commands share, and the running fabric that a command works on."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import click

from moefabric.config.run_directory import FabricWiring, RunDirectory
from moefabric.core.errors import FabricError, SpecError
from moefabric.core.topology import Region

T = TypeVar("T")

FILE: Final = click.Path(path_type=Path)
INVALID: Final = 3
"""Exit status of measurements that can't be trusted."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
name_option = click.option("--name", help="Name of the fabric. Needed if several are up.")
ocs_option = click.option("--ocs", "ocs_name", default="ocs0", help="The OCS.")
settings_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a key of the file."
)


def parse_option(parse: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str], T]:
    """Return an option callback that reports a ValueError of `parse` as wrong usage."""

    def callback(_context: click.Context, _option: click.Parameter, text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def running_fabric(name: str | None) -> str:
    """Return `name`, or the name of the only running fabric if it is None.

    Raises:
        SpecError: if no fabric runs, or several do.
    """
    if name is not None:
        return name
    from moefabric.emulator.fabric import lifecycle

    match lifecycle.running_fabrics():
        case [only]:
            return only
        case []:
            message = "no fabric is up: start one with `moefabric up FABRIC.yaml`"
        case running:
            message = f"{', '.join(running)} are up: choose one with `--name NAME`"
    raise SpecError([("", message)])


def run_directory(name: str | None) -> RunDirectory:
    """Return the run directory of the fabric with this name, or of the only running one."""
    return RunDirectory.of_fabric(running_fabric(name))


def read_wiring(run_dir: RunDirectory) -> FabricWiring:
    """Return the wiring of a running fabric.

    Raises:
        FabricError: if the fabric isn't up.
    """
    try:
        return FabricWiring.from_json(run_dir.wiring_file.read_text())
    except FileNotFoundError as error:
        message = f"{run_dir.name} is not up: start it with `moefabric up FABRIC.yaml`"
        raise FabricError(message) from error


def region_of_ocs(wiring: FabricWiring, ocs_name: str) -> Region:
    """Return the region whose OCS has this name.

    Raises:
        SpecError: if there is no such OCS.
    """
    regions = {region.ocs.name: region for region in wiring.fabric.regions if region.ocs}
    if ocs_name in regions:
        return regions[ocs_name]
    reason = f" is not one of {', '.join(regions)}" if regions else ": the fabric has no OCS"
    raise SpecError([("", f"{ocs_name}{reason}")])
