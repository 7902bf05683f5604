"""`moefabric plan`, `policy` and `cost`: circuits, their policies, and prices, without a fabric."""

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import click

from moefabric import Eps, Fabric, Ocs, Region, SpecError, rate_text
from moefabric.api.commands import FILE, check_writable, print_result, progress_reporter
from moefabric.config.demand_file import read_demand
from moefabric.config.plugins import POLICIES, plugin_names, plugin_reference
from moefabric.core.network_cost import NETWORKS, PRICES, paper_network_usd
from moefabric.runtime.atomic_file import output_error
from moefabric.ui.cli.command import cli_command, cli_group, completed, json_option
from moefabric.ui.cli.options import SecondsType, parse_option, policy_option, positive_rate

if TYPE_CHECKING:
    from moefabric.planner.plan import Plan
    from moefabric.planner.policy import Policy

_TEMPLATES: Final = {
    "pyproject.toml": "pyproject.toml.j2",
    "README.md": "README.md.j2",
    "{module}.py": "policy.py.j2",
    "test_{module}.py": "test_policy.py.j2",
}
"""Template of each file of a package."""
_FACTS: Final = ("reconfigures", "forwards", "splits_by_demand", "suits_patch_panel")
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@cli_command(
    "moefabric plan --demand demand.json --degree 3",
    "moefabric plan --demand demand.json --degree 3 --policy spill --json",
)
@click.option(
    "--demand",
    type=FILE,
    required=True,
    help="JSON file with an array of rows: bytes from the row's server to each server.",
)
@click.option(
    "--degree", type=click.IntRange(0, 64), required=True, help="Optical NICs of each server."
)
@click.option(
    "--electrical", type=click.IntRange(0, 64), default=1, help="Electrical NICs of each server."
)
@click.option(
    "--nic-rate",
    default="100Gb/s",
    callback=parse_option(positive_rate),
    metavar="RATE",
    help="Rate of a NIC.",
)
@policy_option("Name of a policy (`moefabric policy list`), or package.module:Name.", "mixnet")
@json_option
def plan(
    demand: Path, degree: int, electrical: int, nic_rate: float, policy: str, as_json: Path | None
) -> None:
    """Print circuits, split and predicted completion time for a demand. Needs no root."""
    from moefabric import CircuitSet, DemandMatrix
    from moefabric.config.guarded_policy import guarded_policy, policy_faults
    from moefabric.planner import plan as planner

    if degree + electrical == 0:
        message = "servers without NICs reach nobody: give each server a NIC"
        raise SpecError([("--degree, --electrical", message)])
    chosen = guarded_policy(policy)
    rows = read_demand(demand)
    servers = tuple(f"s{i}" for i in range(len(rows)))
    ocs = Ocs("ocs0", max(2, len(servers) * degree)) if degree else None
    eps = Eps(len(servers)) if electrical else None
    regions, nics = (Region("r0", 0, servers, ocs),), (degree, electrical, nic_rate)
    panel, forwards = policy == "topoopt" and eps is None, chosen.forwards
    fabric = Fabric("plan", regions, 8, *nics, eps, patch_panel=panel, forwarding=forwards)
    matrix = DemandMatrix(fabric.servers, rows)
    result = planner.plan(fabric, fabric.regions[0], matrix, chosen, CircuitSet())
    other_path = "over other servers" if fabric.patch_panel else "by the EPS"
    document = result.to_json()
    if faults := policy_faults(chosen):
        raise SpecError([("", fault) for fault in faults])
    print_result(document, _lines(result, other_path), as_json=as_json)


def _lines(plan: "Plan", other_path: str) -> Iterator[str]:
    """Yield the plan as text. `other_path` says how bytes travel without a circuit."""
    predicted_ms, bound_ms = plan.predicted_s * 1e3, plan.bound_s * 1e3
    times = f"{predicted_ms:.3f} ms predicted, {bound_ms:.3f} ms at least"
    yield f"{plan.policy.name}: {len(plan.circuits)} circuits, {times}"
    yield f"  lit: {plan.circuits}"
    unused = [
        f"{ports} ports of {server}"
        for server, ports in zip(plan.servers, plan.leftover_ports, strict=True)
        if ports
    ]
    if unused:
        yield f"  unused: {', '.join(unused)}"
    for share in plan.split:
        parts = f"{share.light_bytes:,.0f} bytes by light, {share.eps_bytes:,.0f} {other_path}"
        for root, size in share.forwarded:
            parts += f", {size:,.0f} by the tree of {root}"
        yield f"  {share.src} to {share.dst}: {parts}"


@cli_command("moefabric cost", "moefabric cost --servers 1024 --json")
@click.option(
    "--servers",
    type=click.IntRange(1, 1_000_000),
    default=128,
    help="Number of servers with 8 NICs each.",
)
@json_option
def cost(servers: int, as_json: Path | None) -> None:
    """Print the prices of networks in USD.

    The networks are fat-tree, 3:1 oversubscribed, rail-optimised, MixNet and TopoOpt.
    """
    table = {
        rate_text(rate): {name: paper_network_usd(name, servers, rate) for name in NETWORKS}
        for rate in PRICES
    }
    print_result(table, _price_lines(servers, table), as_json=as_json)


def _price_lines(servers: int, table: dict[str, dict[str, float]]) -> list[str]:
    heading = "".join(f"{name:>16}" for name in NETWORKS) + f"{'fat-tree/mixnet':>18}"
    lines = [f"networks of {servers:,} servers of 8 NICs, thousand USD", f"{'NIC':<8}{heading}"]
    for rate, usd in table.items():
        cells = "".join(f"{usd[name] / 1e3:>16,.0f}" for name in NETWORKS)
        lines.append(f"{rate:<8}{cells}{usd['fat-tree'] / usd['mixnet']:>18.2f}")
    return lines


@cli_group("moefabric policy list", "moefabric policy check mixnet-spill")
def policy() -> None:
    """List, write and check policies, which choose circuits for a demand. Needs no root."""


@policy.command(
    "list",
    short_help="List the registered policies.",
    examples=["moefabric policy list", "moefabric policy list --json"],
)
@json_option
def list_(as_json: Path | None) -> None:
    """Print the registered policies, built in or of installed packages, and what they are."""
    rows = [_row(name) for name in plugin_names(POLICIES)]
    print_result(rows, _policy_table(rows), as_json=as_json)


def _row(name: str) -> dict[str, Any]:
    from moefabric.config.policies import policy_named

    row: dict[str, Any] = {"name": name, "reference": plugin_reference(POLICIES, name)}
    try:
        known = policy_named(name)
    except SpecError as error:
        return row | {"error": str(error)}
    return row | {fact: getattr(known, fact) for fact in _FACTS}


def _policy_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield f"{'policy':<18}" + "".join(f"{fact:<19}" for fact in _FACTS) + "reference"
    for row in rows:
        if "error" in row:
            yield f"{row['name']:<18}{row['error']}"
            continue
        cells = "".join(f"{'yes' if row[fact] else '-':<19}" for fact in _FACTS)
        yield f"{row['name']:<18}{cells}{row['reference']}"


@policy.command(
    "new",
    short_help="Write a package with a policy.",
    examples=["moefabric policy new best-pairs", "moefabric policy new best-pairs --folder work"],
)
@click.argument("name")
@click.option(
    "--folder", type=FILE, default=Path(), help="Where the package's folder is made.", metavar="DIR"
)
def new(name: str, folder: Path) -> None:
    """Write a package with a policy that works, as a start: NAME is the policy's name.

    The package has an entry point, the policy, a test and a README.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    module, target = name.replace("-", "_"), folder / name
    environment = Environment(
        loader=PackageLoader("moefabric.ui.cli", "policy_package"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - the files are Python, TOML and Markdown
    )
    class_name = "".join(map(str.capitalize, name.split("-")))
    names = {"name": name, "module": module, "class_name": class_name}
    try:
        _check_name(name, module, target)
        check_writable(target)
        with TemporaryDirectory(dir=folder) as scratch:
            package = Path(scratch, name)
            package.mkdir()
            for file, template in _TEMPLATES.items():
                source = environment.get_template(template)
                (package / file.format(module=module)).write_text(source.render(names))
            package.rename(target)
    except OSError as error:
        raise output_error(target, error) from error
    click.echo(f"{target}: written. Next: moefabric policy check {target}")


def _check_name(name: str, module: str, target: Path) -> None:
    if not _NAME.fullmatch(name):
        raise SpecError([("NAME", f"{name!r}: lower-case letters, digits and dashes are needed")])
    if target.exists():
        raise SpecError([(str(target), "exists already: choose another name or folder")])
    if name in plugin_names(POLICIES):
        raise SpecError([("NAME", f"{name} is a policy already: choose another name")])
    if module in sys.stdlib_module_names or find_spec(module) is not None:
        raise SpecError([("NAME", f"{module} is a module of Python already: choose another name")])


@policy.command(
    "check",
    short_help="Try a policy against the laws of policies.",
    examples=["moefabric policy check mixnet", "moefabric policy check best-pairs --limit 60"],
)
@click.argument("target", shell_complete=completed("policies"))
@click.option("--seed", type=click.IntRange(0), default=1, help="Seed of the demands.")
@click.option(
    "--limit",
    "limit_s",
    type=SecondsType(0, min_open=True),
    default=600.0,
    metavar="SECONDS",
    show_default=True,
    help="How long the check may take.",
)
@click.option(
    "--up-to",
    "largest",
    type=click.IntRange(2),
    default=128,
    metavar="SERVERS",
    show_default=True,
    help="Largest region in which laws are tried and times measured.",
)
@json_option
def check(target: str, seed: int, limit_s: float, largest: int, as_json: Path | None) -> None:
    """Try a policy in many situations, and print which laws it keeps and how long it takes.

    TARGET is the name of a policy, package.module:Name, or a folder with a package of policies.
    The exit status is 1 if a law is broken, or the check takes too long: then it prints what it
    has found so far.
    """
    from moefabric.api.policy_check import SERVERS, TIMED_SERVERS, check_within

    steps = len(SERVERS) + len(TIMED_SERVERS)
    with progress_reporter(steps) as reporter:
        reports = check_within(limit_s, _targets(target), largest, seed, reporter.advance)
    lines = (line for report in reports for line in report.lines())
    print_result([report.to_json() for report in reports], lines, as_json=as_json)
    if any(report.unfinished or not report.keeps_all_laws for report in reports):
        sys.exit(1)


def _targets(target: str) -> Iterator["Policy"]:
    from moefabric.config.policies import policy_named

    folder = Path(target)
    if not folder.is_dir() or target in plugin_names(POLICIES):
        yield policy_named(target)
        return
    file = folder / "pyproject.toml"
    try:
        project = tomllib.loads(file.read_text())["project"]
        references = project["entry-points"][POLICIES]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        message = f"no entry points of {POLICIES} there: {error}"
        raise SpecError([(str(file), message)]) from error
    sys.path.insert(0, str(folder.resolve()))
    for reference in references.values():
        yield policy_named(reference)
