"""A fabric of tests on two machines made of namespaces, commanded from the head."""

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moefabric.config.loader import load_experiment
from moefabric.controller.client import wait_for_controllers
from moefabric.core.eps import Eps
from moefabric.core.machines import LEASE_S, Machine, MachinePlacement
from moefabric.core.ocs import Ocs, OcsControl
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric import lifecycle
from moefabric.execution.run import run
from moefabric.results.progress import PlainProgressReporter
from moefabric.testbed.fabric_processes import fabric_processes
from moefabric.testbed.placed_fabric import fitted_fabric
from tests.support.machine_namespaces import NamespaceMachine

RATE_BPS = 20e6
UP_S = 120.0
_COMMAND = str(Path(sys.executable).with_name("moefabric"))
_READ = """
import sys
from moefabric.runtime.run_directory import RunDirectory
from moefabric.core.port_counts import INTO_OCS
from moefabric.emulator.fabric.port_counters import EmulatedPortCounters
name, nic = sys.argv[1:]
print(EmulatedPortCounters(RunDirectory.of_fabric(name), [nic]).read().bytes[0, INTO_OCS])
"""
_RUN = "import sys; from tests.support.placed_fabrics import run_here; run_here(*sys.argv[1:])"
_UP = "import sys; from tests.support.placed_fabrics import up_here; up_here(*sys.argv[1:])"


@contextmanager
def machine_service(
    machine: NamespaceMachine, lease_s: float = LEASE_S, clock_ahead_s: int = 0
) -> Iterator[Machine]:
    """Run the machine service on a machine, and yield what a head needs to reach it.

    Args:
        machine: The machine.
        lease_s: Silence of a head after which its part ends.
        clock_ahead_s: CLOCK_MONOTONIC of the machine's programs minus that of the head. The kernel
            keeps the head's clock, so that no light moves on such a machine.
    """
    secret = secrets.token_hex(16)
    ahead = ["unshare", "-T", "--monotonic", str(clock_ahead_s), "--fork", "--kill-child"]
    argv = [*(ahead if clock_ahead_s else ()), sys.executable]
    argv += ["-m", "moefabric.testbed.cluster.service"]
    argv += ["--listen", machine.address, "--lease", str(lease_s)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with machine.start(*argv, **pipes) as service:
        assert service.stdin is not None
        assert service.stdout is not None
        service.stdin.write(f"{secret}\n")
        service.stdin.flush()
        port = json.loads(service.stdout.readline())["port"]
        yield Machine(machine.name, machine.address, port, secret)
        service.stdin.close()
        service.wait(60)


def two_regions(name: str) -> Fabric:
    """Return a fabric of two regions with two servers each and one leaf.

    The controllers command one OCS by SCPI, and the other one by TL1.
    """
    regions = tuple(
        Region(
            f"r{n}",
            n,
            (f"s{2 * n}", f"s{2 * n + 1}"),
            Ocs(f"ocs{n}", ports=2, control=OcsControl(driver)),
        )
        for n, driver in enumerate(("scpi", "tl1"))
    )
    return Fabric(name, regions, 2, 1, 1, RATE_BPS, Eps(servers_per_leaf=4))


def up_here(name: str, head: str, other: str) -> None:
    """Bring the fabric up with its second region on another machine; call it on the head.

    Args:
        name: The fabric.
        head: Address of the head.
        other: The other machine as JSON.
    """
    fabric = two_regions(name)
    machines = Machine("head", head), Machine(**json.loads(other))
    regions = {"r0": "head", "r1": machines[1].name}
    placement = MachinePlacement.of(fabric, machines, regions)
    fabric = fitted_fabric(fabric, placement, PlainProgressReporter())
    wanted = replace(lifecycle.wanted(fabric, "bpf"), placement=placement)
    wiring = lifecycle.up(wanted, fabric_processes, UP_S)
    wait_for_controllers(wiring, UP_S)


def run_here(file: str, head: str, other: str, there: str, verb: str) -> None:
    """Run an experiment and print its result as JSON; call it on the head.

    Args:
        file: The experiment.
        head: Address of the head.
        other: The other machine as JSON; `null` for the head alone.
        there: What the other machine has: `regions`, all but the first; `servers`, all regions; or
            `eps`.
        verb: `run` or `train`.
    """
    machines = [Machine("head", head), *(Machine(**one) for one in [json.loads(other)] if one)]

    @contextmanager
    def place(fabric: Fabric) -> Iterator[MachinePlacement]:
        name = machines[-1].name
        regions = {one.name: "head" if there == "eps" else name for one in fabric.regions}
        if there == "regions":
            regions[fabric.regions[0].name] = "head"
        yield MachinePlacement.of(fabric, machines, regions, eps=name if there == "eps" else "head")

    spec, reporter = load_experiment(Path(file)), PlainProgressReporter()
    result = run(
        spec,
        Path(file).parent,
        reporter,
        trains=verb == "train",
        place=place if len(machines) > 1 else None,
    )
    sys.stdout.write(result.model_dump_json())


def result_of(
    file: Path,
    machines: Mapping[str, NamespaceMachine],
    other: Machine | None = None,
    there: str = "regions",
    verb: str = "run",
) -> dict[str, Any]:
    """Return the result of an experiment on one machine, or on two if another one is given."""
    head = machines["head"]
    words = str(file), head.address, json.dumps(vars(other) if other else None), there, verb
    ended = head.run(sys.executable, "-c", _RUN, *words, timeout_s=2 * UP_S)
    return dict(json.loads(ended.stdout))


@dataclass(frozen=True)
class PlacedFabric:
    """A fabric that is up on two machines.

    Attributes:
        fabric: Its servers, NICs and switches.
        machines: The machines by name.
    """

    fabric: Fabric
    machines: Mapping[str, NamespaceMachine]

    def address(self, server: str) -> str:
        """Return the first address of a server."""
        return self.fabric.addressing.addresses(server)[0]

    def command(
        self, *words: str, text: str | None = None, check: bool = True, on: str = "head"
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command of moefabric on a machine, with a text as its input."""
        return self.machines[on].run(_COMMAND, *words, text=text, check=check, timeout_s=UP_S)

    def start_command(self, *words: str, **options: Any) -> "subprocess.Popen[str]":
        """Start a command of moefabric on the head; options are those of Popen."""
        return self.machines["head"].start(_COMMAND, *words, **options)

    def exec(
        self, server: str, *words: str, text: str | None = None, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program on a server."""
        return self.command("exec", server, "--", *words, text=text, check=check)

    def start(self, server: str, *words: str, **options: Any) -> "subprocess.Popen[str]":
        """Start a program on a server; options are those of Popen."""
        return self.start_command("exec", server, "--", *words, **options)

    def is_up(self, machine: str, interface: str) -> bool:
        """Return whether an interface of a machine's part is switched on."""
        shown = self.machines[machine].run(
            "sh", "-c", f"nsenter -t $(pgrep -of fabric.daemon) -n ip -j link show {interface}"
        )
        return "UP" in json.loads(shown.stdout)[0]["flags"]

    def deviations(self) -> list[str]:
        """Return where the fabric differs from its plan, on any machine."""
        script = (
            "import json; from moefabric.emulator.fabric import lifecycle;"
            f"print(json.dumps(lifecycle.deviations({self.fabric.name!r})))"
        )
        ended = self.machines["head"].run(sys.executable, "-c", script)
        return list(json.loads(ended.stdout))

    def light_bytes(self, nic: str) -> int:
        """Return the bytes that have entered the OCS from a NIC."""
        ended = self.machines["head"].run(sys.executable, "-c", _READ, self.fabric.name, nic)
        return int(ended.stdout)

    def remains(self, machine: str) -> str:
        """Return what is left of the fabric on a machine."""
        there = self.machines[machine]
        folders = there.run("ls", there.env["MOEFABRIC_RUN_DIR"]).stdout.split()
        programs = [one for one in there.processes() if "moefabric" in one and "service" not in one]
        return " ".join([*folders, *programs, *there.interfaces()])


@contextmanager
def placed_fabric(
    name: str, machines: Mapping[str, NamespaceMachine], other: Machine, *, goes_down: bool = True
) -> Iterator[PlacedFabric]:
    """Bring a fabric up on two machines, of which `head` commands it, and take it down."""
    head = machines["head"]
    words = name, head.address, json.dumps(vars(other))
    head.run(sys.executable, "-c", _UP, *words, timeout_s=2 * UP_S)
    placed = PlacedFabric(two_regions(name), machines)
    try:
        yield placed
    finally:
        if goes_down:
            placed.command("down", name, check=False)
