"""`moefabric paper`: the MixNet paper's tables, predicted and judged without root; with `--emulated`, a region of each on packets."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from moefabric.commands.ending import ended_in_order
from moefabric.commands.files import STANDARD_OUTPUT, writable, write

if TYPE_CHECKING:
    from moefabric.paper.tables import Paper

INVALID: Final = 3
"""Exit status of packets that can't be believed."""
_PATH: Final = click.Path(path_type=Path)


@click.command(short_help="Predict the MixNet paper's tables.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path("examples/paper"))
@click.option("--json", "json_file", type=_PATH, help="Write every row as JSON.")
@click.option("--report", type=_PATH, help="Write one HTML page.")
@click.option("--emulated", is_flag=True, help="Send one region's all-to-alls as packets. Root; 15 minutes.")
@click.option(
    "--only", multiple=True, metavar="MODEL[@RATE]", help="With --emulated: only this model, at this rate."
)
def paper(
    folder: Path, json_file: Path | None, report: Path | None, emulated: bool, only: tuple[str, ...]
) -> None:
    """Print what the fluid model, or packets, say of the paper's tables, row by row; FOLDER has its experiments."""
    from moefabric.paper.page import page
    from moefabric.paper.tables import predicted
    from moefabric.paper.text import lines

    if only and not emulated:
        raise click.UsageError("--only is of packets: give --emulated too")
    writable(json_file, report)
    foreseen = predicted(folder)
    made = _on_packets(foreseen, only) if emulated else foreseen
    if json_file != STANDARD_OUTPUT:
        click.echo("\n".join(lines(made)))
    write(json_file, json.dumps(made.to_json(), indent=1) + "\n")
    if report:
        write(report, page(foreseen, made if emulated else None))
    if made.packets is not None and made.packets.invalid:
        sys.exit(INVALID)


@ended_in_order()
def _on_packets(foreseen: "Paper", only: tuple[str, ...]) -> "Paper":
    from moefabric.console import reporter
    from moefabric.paper.emulated import Part, cells, emulated, sent, steps

    wanted = cells(foreseen.scene, [Part.of(text) for text in only])
    with reporter(steps(wanted, light=not only)) as told:
        return emulated(foreseen, sent(foreseen.scene, wanted, told, light=not only))
