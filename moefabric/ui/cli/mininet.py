"""`moefabric mininet`: Mininet's command line on a running fabric."""

import sys

import click

from moefabric.ui.cli.command import cli_command, name_option
from moefabric.ui.cli.options import running_lab


@cli_command("moefabric mininet", "moefabric mininet lab")
@name_option
@click.option("--custom-file", is_flag=True, help="Print the path of a file for `mn --custom`.")
def mininet(name: str | None, custom_file: bool) -> None:
    """Run Mininet's command line on the running fabric NAME; `exit` leaves the fabric running.

    Commands are Mininet's: `pingall`, `s0 iperf3 -c s1`, `net`, `dump`, `links`, `py s0.IP()`.
    `link s0 leaf0 down` makes the NICs fail as `moefabric fault` does. A script of commands may
    come from standard input.

    `mn --custom $(moefabric mininet --custom-file) --topo fabric,FABRIC.yaml --switch bpf
    --controller fabric` makes a fabric by Mininet's `mn`.
    """
    from moefabric.api import mininet as of_mininet

    if custom_file:
        click.echo(of_mininet.custom_file())
        return
    of_mininet.command_line(running_lab(name), sys.stdin)
