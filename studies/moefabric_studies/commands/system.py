"""`moefabric system`: claims of other systems, measured on this testbed."""

import json
import os
import platform
import sys
from pathlib import Path

import click

from moefabric.api import commands
from moefabric.api.signals import graceful_shutdown


@click.command(short_help="Measure the claims of other systems.")
@click.argument(
    "files",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    nargs=-1,
    required=True,
    metavar="STUDY.yaml...",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change the file.")
@commands.plugins_option
@click.option("--json", "json_file", type=commands.FILE, help="Write claims and values as JSON.")
@click.option(
    "--pages",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for a page and pictures of each study: docs/systems.",
)
@click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to which results of runs are stored: docs/results.",
)
@click.option(
    "--stored",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder of stored results, which take the place of runs where a study needs figures only.",
)
@click.option("--resume", is_flag=True, help="Go on where the run of this --json file was stopped.")
@graceful_shutdown()
def system(
    files: tuple[Path, ...],
    settings: tuple[str, ...],
    json_file: Path | None,
    pages: Path | None,
    resume: bool,
    **folders: Path | None,
) -> None:
    """Measure the claims of a system's authors, and print each with its verdict.

    Bands are read from the files before anything is measured. Exit status 3: a measurement is
    invalid.
    """
    from moefabric.api.units import file_digests, finished_units
    from moefabric_studies.systems.page import ClaimsTable, write_page
    from moefabric_studies.systems.study import run_study

    names = [None if pages is None else pages / f"{file.stem}.md" for file in files]
    commands.check_writable(json_file, *names)
    identity = {
        "command": "system",
        "files": file_digests(files),
        "settings": list(settings),
        "stored": str(folders["stored"]),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
    }
    results = []
    with (
        finished_units(json_file, identity, resume=resume) as units,
        commands.progress_reporter(len(files)) as reporter,
    ):
        for file, page in zip(files, names, strict=True):
            reporter.show_message(f"{file.stem}: measuring")
            result = run_study(file, reporter, settings, units=units, **folders)
            results.append(result)
            if page is not None:
                write_page(result, file, page)
        text = json.dumps({"systems": [one.to_json() for one in results]}, indent=1) + "\n"
        commands.write_output(json_file, text)
    if json_file != commands.STANDARD_OUTPUT:
        commands.print_renderable(ClaimsTable(results))
    if any(result.is_invalid for result in results):
        sys.exit(commands.INVALID)
