"""`moefabric paper`: the MixNet paper's tables, predicted and judged. No root, no fabric."""

import json
from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path("examples/paper"))
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write every row as JSON.")
@click.option("--report", type=click.Path(path_type=Path), help="Write one HTML page.")
def paper(folder: Path, json_file: Path | None, report: Path | None) -> None:
    """What the fluid model says of the paper's tables, row by row."""
    from moefabric.paper.page import page
    from moefabric.paper.tables import predicted
    from moefabric.paper.text import lines

    made = predicted(folder)
    for line in lines(made):
        click.echo(line)
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(made.to_json(), indent=1) + "\n")
    if report:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(page(made))
