"""`fault gpu`, `fault controller`: what fails of a job's processes rather than of its hardware."""

import click

from moefabric.commands.fabric import only_running
from moefabric.failures import Failure, How, Kind
from moefabric.management import RunDir

_name = click.option("--name", help="The fabric, where more than one is up.")


@click.command(short_help="Let GPUs fail.")
@click.argument("gpus", nargs=-1, required=True, metavar="GPU...")
@click.option("--clear", is_flag=True, help="Let them work again.")
@_name
def gpu(gpus: tuple[str, ...], clear: bool, name: str | None) -> None:
    """Let GPUs such as s1/3 fail: their ranks die, which their servers' agents report to the job."""
    from moefabric.experiment import breaking

    failure = Failure(Kind.GPU, gpus)
    (breaking.mend if clear else breaking.break_)(RunDir.named(name or only_running()), failure)
    click.echo(f"{failure}: {'cleared' if clear else 'failed'}")


@click.command(short_help="Kill a controller, or let it stand still.")
@click.argument("region")
@click.option("--kill", "how", flag_value="kill", help="Kill its process, which is started again at once.")
@click.option("--stop", "how", flag_value="stop", help="Let its process stand still until --continue.")
@click.option("--continue", "how", flag_value="continue", help="Let it go on.")
@_name
def controller(region: str, how: str | None, name: str | None) -> None:
    """Kill or stop the controller of REGION (r0, or eps for the packet switches')."""
    from moefabric.experiment import breaking

    if how is None:
        raise click.UsageError("give --kill, --stop or --continue")
    run_dir = RunDir.named(name or only_running())
    if how == "continue":
        breaking.mend(run_dir, Failure(Kind.CONTROLLER, (region,), How.STOP))
    else:
        breaking.break_(run_dir, Failure(Kind.CONTROLLER, (region,), How(how)))
    said = {"kill": "killed", "stop": "stopped", "continue": "continued"}
    click.echo(f"controller of {region}: {said[how]}")
