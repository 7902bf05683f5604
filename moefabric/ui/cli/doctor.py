"""`moefabric doctor`: capabilities of this machine, and remedies for missing ones."""

from dataclasses import asdict

import click

from moefabric.api.commands import print_result
from moefabric.ui.cli.options import json_option


@click.command(short_help="Check what this machine can do.")
@json_option
def doctor(as_json: bool) -> None:
    """Check what this machine can do, and print the remedy for what it can't."""
    from moefabric.api.measurements import probe_machine

    findings = probe_machine()
    lines = []
    for finding in findings:
        mark = click.style("ok  ", fg="green") if finding.ok else click.style("no  ", fg="yellow")
        remedy = f"; {finding.remedy}" if finding.remedy and not finding.ok else ""
        lines.append(f"{mark} {finding.what}: {finding.why}{remedy}")
    print_result([asdict(finding) for finding in findings], lines, as_json=as_json)
