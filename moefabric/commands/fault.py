"""`fault`: make the hardware suffer while it runs, see what it suffers from, and clear it again."""

import click

from moefabric.commands import fault_hardware, fault_job, fault_list, fault_ocs
from moefabric.commands.fabric import only_running
from moefabric.management import RunDir


@click.group(invoke_without_command=True, short_help="Let parts of a fabric fail, and clear that.")
@click.option("--clear", is_flag=True, help="Clear all faults, of whatever kind.")
@click.option("--name", help="With --clear: the fabric, where more than one is up.")
@click.pass_context
def fault(context: click.Context, clear: bool, name: str | None) -> None:
    """Let parts of a running fabric fail, list what it suffers from, and clear it."""
    if context.invoked_subcommand is not None:
        return
    if not clear:
        click.echo(context.get_help())
        return
    from emulator import injection
    from moefabric.experiment import breaking

    run_dir = RunDir.named(name or only_running())
    for one in breaking.standing(run_dir):
        breaking.mend(run_dir, one)
    fault_list.told(injection.clear(run_dir)["faults"], as_json=False)


for _command in (
    fault_ocs.ocs,
    fault_hardware.nic,
    fault_hardware.server,
    fault_job.gpu,
    fault_job.controller,
    fault_list.list_,
):
    fault.add_command(_command)
