"""`moefabric doctor`: what this machine can and can't do, and the remedy, one line each."""

import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """What this machine can and can't do."""
    from dataclasses import asdict

    from emulator.probe import findings

    found = findings()
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in found]))
        return
    for finding in found:
        mark = click.style("ok  ", fg="green") if finding.ok else click.style("no  ", fg="yellow")
        remedy = f"; {finding.remedy}" if finding.remedy and not finding.ok else ""
        click.echo(f"{mark} {finding.what}: {finding.why}{remedy}")
