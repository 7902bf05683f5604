"""`moefabric hostfile`, `mpirun`, `torchrun` and `mininet`: programs on a running fabric."""

import sys
from pathlib import Path
from typing import Any

import click

from moefabric.core.errors import FabricError
from moefabric.ui.cli.command import cli_command, name_option
from moefabric.ui.cli.options import environment_option, policy_option, running_lab

_PROGRAM = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_COUNT = click.IntRange(min=1)

_slots_option = click.option(
    "--slots", type=_COUNT, default=1, help="Ranks that each server has room for."
)
_servers_option = click.option(
    "--servers",
    callback=lambda _context, _option, text: text.split(",") if text else None,
    metavar="S0,S1,...",
    help="The servers, in the order of their ranks. Default: all.",
)


@cli_command("moefabric hostfile --slots 2 > hosts", "moefabric hostfile lab --servers s0,s1")
@_slots_option
@_servers_option
@name_option
def hostfile(slots: int, servers: list[str] | None, name: str | None) -> None:
    """Print the servers of a running fabric as a hostfile of OpenMPI."""
    click.echo(running_lab(name).hostfile(slots=slots, servers=servers), nl=False)


@cli_command(
    "moefabric mpirun --slots 2 -- ./program",
    "moefabric mpirun lab -n 4 -- ./program",
    context_settings=_PROGRAM,
)
@click.option("-n", "ranks", type=_COUNT, help="Ranks. Default: all slots.")
@_slots_option
@_servers_option
@environment_option
@name_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def mpirun(command: tuple[str, ...], name: str | None, **options: Any) -> None:
    """Run COMMAND by OpenMPI's mpirun: `moefabric mpirun --slots 2 -- ./program ARGUMENT`.

    mpirun starts ranks on the servers without ssh, and has them talk over the fabric. Options
    before the program are mpirun's: `moefabric mpirun -- --tag-output ./program`.
    """
    with running_lab(name) as lab:
        sys.exit(lab.mpirun(command, **options).returncode)


@cli_command(
    "moefabric torchrun train.py --steps 10",
    "moefabric torchrun --policy mixnet --nproc-per-node 2 train.py",
    context_settings=_PROGRAM,
)
@click.option(
    "--nproc-per-node",
    "--nproc_per_node",
    "ranks_per_server",
    type=_COUNT,
    default=1,
    help="Ranks on each server.",
)
@click.option("-m", "--module", is_flag=True, help="PROGRAM is a module, as in `python -m`.")
@click.option("--no-python", is_flag=True, help="PROGRAM is executable; start it without Python.")
@click.option("--tag", is_flag=True, help="Print the rank before each line of output.")
@policy_option(
    "Carry the all-to-alls of the backend `moefabric`, on circuits that this policy chooses "
    "for each. Default: that backend works as gloo does."
)
@_servers_option
@environment_option
@name_option
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def torchrun(
    program: str,
    arguments: tuple[str, ...],
    module: bool,
    no_python: bool,
    tag: bool,
    policy: str | None,
    name: str | None,
    **options: Any,
) -> None:
    """Run PROGRAM on all servers with torchrun's environment.

    The first rank that fails ends the others; the exit status is 1 then. Ranks meet over the
    management network, and gloo talks over the fabric.
    """
    from moefabric.api.running_fabrics import not_up
    from moefabric.api.server_programs import print_line, print_tagged_line

    if module and no_python:
        raise click.UsageError("give either --module or --no-python")
    if program.startswith("-"):
        option = program.partition("=")[0]
        how = "--servers and --nproc-per-node say where ranks run, and options of the program"
        raise click.UsageError(f"no such option: {option}; {how} follow its name")
    if not module and not no_python and not Path(program).exists():
        if Path(program).name.startswith("python"):
            raise click.UsageError(f"{program}: leave it out, since Python runs PROGRAM")
        if name is None and arguments and Path(arguments[0]).is_file():
            raise FabricError(not_up(program))
        raise click.UsageError(f"{program}: no such file")
    python = [] if no_python else [sys.executable, *(["-m"] if module else [])]
    command = [*python, program, *arguments]
    options["on_line"] = print_tagged_line if tag else print_line
    with running_lab(name) as lab:
        gpus = lab.wiring.fabric.gpus
        if options["ranks_per_server"] > gpus:
            ranks = options["ranks_per_server"]
            click.echo(f"note: {ranks} ranks on each server, which has {gpus} GPUs", err=True)
        if policy is None:
            with lab.launch(command, **options) as ranks:
                ranks.wait()
            return
        exchanges = lab.torchrun(command, policy, **options)
    sent = sum(sum(exchange.exchange.owed.values()) for exchange in exchanges)
    optical = sum(exchange.optical_bytes for exchange in exchanges)
    seconds = sum(exchange.seconds for exchange in exchanges)
    click.echo(
        f"{len(exchanges)} all-to-alls of {sent:,} bytes between servers in {seconds:.3f} s, "
        f"{optical / max(1, sent):.0%} by light",
        err=True,
    )
    if not exchanges:
        why = "--policy carries those of programs that call init_process_group('moefabric')"
        click.echo(f"note: no all-to-all came: {why}", err=True)


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
