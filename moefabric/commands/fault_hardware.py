"""`fault nic`, `fault server`: take NICs and whole servers from a running fabric, and give them back."""

import click

from moefabric.commands.fabric import only_running
from moefabric.commands.fault_list import told
from moefabric.management import RunDir

_clear = click.option("--clear", is_flag=True, help="Give back what is named, or all.")
_name = click.option("--name", help="The fabric, where more than one is up.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command(short_help="Take the links of NICs down.")
@click.argument("nics", nargs=-1, metavar="NIC...")
@_clear
@_name
@_json
def nic(nics: tuple[str, ...], clear: bool, name: str | None, as_json: bool) -> None:
    """Take the links of NICs down, such as s0/e0 and s0/o1: neither end has carrier, and frames are dropped."""
    _do("nic", nics, clear=clear, name=name, as_json=as_json)


@click.command(short_help="Let servers stand still.")
@click.argument("servers", nargs=-1, metavar="SERVER...")
@_clear
@_name
@_json
def server(servers: tuple[str, ...], clear: bool, name: str | None, as_json: bool) -> None:
    """Let servers such as s3 stand still: their agents' processes are stopped, and all their NICs are down."""
    _do("server", servers, clear=clear, name=name, as_json=as_json)


def _do(kind: str, what: tuple[str, ...], *, clear: bool, name: str | None, as_json: bool) -> None:
    from emulator import injection

    if not what and not clear:
        raise click.UsageError(f"which {kind}?")
    run_dir = RunDir.named(name or only_running())
    said = injection.clear(run_dir, kind, what) if clear else injection.inject(run_dir, kind, what)
    told(said["faults"], as_json=as_json)
