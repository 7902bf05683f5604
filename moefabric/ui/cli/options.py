"""Options that several commands share, and the running fabric that a command works on."""

from collections.abc import Callable
from functools import reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from moefabric.api.commands import FILE, plugins_option
from moefabric.core.machines import Strategy
from moefabric.core.units import rate_bps
from moefabric.runtime.environment import named_variables
from moefabric.ui.cli.command import completed, is_typed, name_option

if TYPE_CHECKING:
    from moefabric.api.lab import Lab

T = TypeVar("T")
Given = TypeVar("Given")
"""What click has read: a text, or the texts of an option that may be given again."""
Command = TypeVar("Command", bound=Callable[..., Any])
_POLICY: Final = "mixnet-spill"
"""Chooses the circuits of `--via policy` unless --policy does."""


def all_of(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds arguments and options, in this order."""

    def add(command: Command) -> Command:
        return reduce(lambda decorated, option: option(decorated), reversed(options), command)

    return add


def parse_option(
    parse: Callable[[Given], T],
) -> Callable[[click.Context, click.Parameter, Given], T]:
    """Return an option callback that reports a ValueError of `parse` as wrong usage."""

    def callback(_context: click.Context, _option: click.Parameter, given: Given) -> T:
        try:
            return parse(given)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def _settings(given: tuple[str, ...]) -> tuple[str, ...]:
    """Return settings that all have a value, which click would take for a word behind them."""
    if bare := next((setting for setting in given if "=" not in setting), None):
        raise ValueError(f"{bare!r} has no value: {bare}=VALUE is one word")
    return given


ocs_option = click.option(
    "--ocs", "ocs_name", default="ocs0", shell_complete=completed("ocses"), help="The OCS."
)


settings_option = all_of(
    click.option(
        "--set",
        "settings",
        multiple=True,
        callback=parse_option(_settings),
        metavar="KEY=VALUE",
        shell_complete=completed("settings"),
        help="Change a key of the file.",
    ),
    plugins_option,
)
open_cluster_option = click.option(
    "--open-cluster",
    is_flag=True,
    help="With --cluster: it may do without a token, as nobody else reaches its network.",
)
placement_options = all_of(
    click.option(
        "--cluster",
        metavar="ADDRESS",
        help="Place the fabric on the nodes of a Ray cluster: HOST:PORT of its head, or auto.",
    ),
    click.option(
        "--spread",
        type=click.Choice([strategy.value for strategy in Strategy]),
        default=Strategy.PACK.value,
        help="With --cluster: how regions and EPS are spread over nodes.",
    ),
    open_cluster_option,
    settings_option,
)


def policy_option(text: str, default: str | None = None) -> Callable[[Command], Command]:
    """Return the option for a policy, with its text in the help."""
    return click.option(
        "--policy", default=default, shell_complete=completed("policies"), help=text
    )


pacing_options = all_of(
    click.option("--check/--no-check", "verify", default=True, help="Verify the results."),
    click.option("--greedy", is_flag=True, help="Let congestion control alone set rates."),
)


def via_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --via, and the --policy of `--via policy`, which is looked up before any work."""

    @click.option(
        "--via",
        type=click.Choice(["eps", "light", "policy"]),
        default="eps",
        help="The EPS, the circuits that are lit, or those that --policy chooses.",
    )
    @policy_option(f"The policy of --via policy. Default: {_POLICY}.")
    @wraps(command)
    def with_way(via: str, policy: str | None, **options: Any) -> None:
        from moefabric.config.policies import policy_named

        if policy is not None and via != "policy":
            raise click.UsageError(f"--policy {policy} is for --via policy, not --via {via}")
        if via == "policy":
            policy_named(policy or _POLICY)
        command(via=via, policy=policy or _POLICY, **options)

    return with_way


environment_option = click.option(
    "--env",
    "environment",
    multiple=True,
    callback=parse_option(named_variables),
    metavar="NAME[=VALUE]",
    help="Give the program this variable too; without a value, the caller's.",
)


class SecondsType(click.FloatRange):
    """A number of seconds within bounds."""

    name = "number of seconds"


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 0xFFFF:
        raise ValueError(f"{text!r} is not an address such as 127.0.0.1:8899")
    return host.strip("[]") or "127.0.0.1", int(port)


def listen_option(default: str) -> Callable[[Command], Command]:
    """Return the option for the address of a server, as host and port."""
    return click.option(
        "--listen",
        default=default,
        callback=parse_option(_address),
        metavar="HOST:PORT",
        help="Address to listen at. Port 0 takes a free one.",
    )


def positive_rate(text: str) -> float:
    """Return a rate in bits per second.

    Raises:
        ValueError: If the text is no rate above zero.
    """
    rate = rate_bps(text)
    if rate <= 0:
        raise ValueError(f"{text} is not a rate above zero")
    return rate


def lab_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --spec, --set and --name; the command's `lab` returns the fabric of a file, or `Lab`."""

    @click.option("--spec", type=FILE, help="Bring this fabric up. Default: the one that is up.")
    @settings_option
    @name_option
    @wraps(command)
    def with_lab(
        spec: Path | None, settings: tuple[str, ...], name: str | None, **options: Any
    ) -> None:
        if spec is not None and name is not None and is_typed(click.get_current_context(), "name"):
            raise click.UsageError("give either --spec or the NAME of a running fabric")
        if settings and spec is None:
            raise click.UsageError("--set changes a --spec")

        def lab() -> "Lab":
            from moefabric.api.fabric import EmulatedFabric

            return running_lab(name) if spec is None else EmulatedFabric.load(spec, settings).up()

        command(lab=lab, **options)

    return with_lab


def running_lab(name: str | None) -> "Lab":
    """Return the running fabric with this name, or the only one that runs.

    Raises:
        FabricError: if no fabric of this name runs; it lists those that do.
        SpecError: if no fabric runs, or several do, and there is no name.
    """
    from moefabric.api.lab import Lab

    return Lab.running(name)
