"""Mininet's own programs on fabrics: its command line on a running one, `mn` with a fabric file.

`custom_file()` is a file for `mn --custom`, whose `topos`, `switches` and `controllers` become
choices of `mn`. Its `Mininet` takes the place of Mininet's class there: of a topology that comes
from a fabric file, the fabric itself is made, with light, shaping and controllers.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO

from moefabric.api.fabric import EmulatedFabric
from moefabric.api.lab import Lab
from moefabric.api.running_fabrics import running_fabrics
from moefabric.core.errors import FabricError, SpecError
from moefabric.emulator.fabric.mininet_nodes import (
    FabricCLI,
    FabricController,
    FabricTopo,
    run_commands,
)
from moefabric.emulator.fabric.mininet_switch import BpfSwitch
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.runtime.atomic_file import write_whole
from moefabric.runtime.run_directory import ManagementNetwork, run_root

# isort: split
from mininet.clean import cleanup as clean_machine
from mininet.link import Link
from mininet.net import Mininet as PlainMininet
from mininet.node import Host, OVSSwitch, RemoteController

CLI: Final = FabricCLI
_CUSTOM: Final = """# For `mn --custom`; made by `moefabric mininet --custom-file`.
import os, sys
if sys.prefix != {prefix!r}:
    start = "import sys, runpy, moefabric.emulator.fabric.mininet_package; sys.argv[:1] = []; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    os.execv({python!r}, [{python!r}, "-c", start, *sys.argv])
from moefabric.api.mininet import CLI, Mininet, cleanup, controllers, switches, topos
"""
"""`mn` starts again with this environment's Python, which has moefabric."""
_fabric_files = list[str]()
"""Fabric files in the arguments of `mn`."""


def command_line(lab: Lab, commands: TextIO) -> None:
    """Run Mininet's command line on a fabric until `exit`; the fabric runs on.

    Args:
        lab: The running fabric.
        commands: A terminal, or a script of commands.
    """
    try:
        run_commands(lab.net, commands)
    finally:
        lab.net.end_shells()


def custom_file() -> Path:
    """Write the file for `mn --custom` to the folder of run directories, and return its path.

    Raises:
        OutputError: If the file can't be written.
    """
    file = run_root() / "mn.py"
    with suppress(OSError):  # the next line reports it
        file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, _CUSTOM.format(prefix=sys.prefix, python=sys.executable))
    return file


def fabric_topo(file: str = "", **settings: object) -> FabricTopo:
    """Return the topology of a fabric file: `mn --topo fabric,FILE,scale.bytes=1000`.

    Raises:
        SpecError: With all faults of the file and the settings.
    """
    _fabric_files.append(file)
    if not file:
        raise SpecError([("--topo", "fabric: name its file: `--topo fabric,FABRIC.yaml`")])
    emulated = EmulatedFabric.load(file, [f"{key}={value}" for key, value in settings.items()])
    fabric = emulated.spec.build()
    topo = FabricTopo(plan_fabric(fabric, ManagementNetwork.example_for(fabric)))
    topo.emulated = emulated
    return topo


topos: Final = {"fabric": fabric_topo}
switches: Final = {"bpf": BpfSwitch}
controllers: Final = {"fabric": FabricController}


def Mininet(  # noqa: N802 - takes the place of Mininet's class in `mn`
    topo: Any = None, *, switch: Any, controller: Sequence[Any], **options: Any
) -> Any:
    """Make a fabric of a topology that comes from a fabric file; else Mininet makes the network.

    The fabric ends with `stop`, or with the calling process.

    Raises:
        SpecError: If an option contradicts the fabric's file.
        FabricError: If the fabric can't be made.
    """
    follows_fabric = controllers["fabric"] in controller
    if getattr(topo, "emulated", None) is None:
        if follows_fabric:
            raise SpecError([("--controller", "fabric: needs `--topo fabric,FABRIC.yaml`")])
        return PlainMininet(topo=topo, switch=switch, controller=controller, **options)
    for name, usual in (("host", Host), ("link", Link)):
        if options.get(name, usual) is not usual:
            raise SpecError([(f"--{name}", "the fabric's file decides about servers and links")])
    changes = {"switch": _switch_kind(switch)}
    if not follows_fabric:
        changes["controller"] = "external"
    lab = EmulatedFabric.of(topo.emulated.spec.model_copy(update=changes)).up()
    lab.__enter__()
    lab.net.waitConn = options.get("waitConnected", False)
    lab.net.on_stop = lab.__exit__
    for number, kind in enumerate([] if follows_fabric else controller):
        _add_controller(lab, f"c{number}", kind)
    return lab.net


def _switch_kind(switch: Any) -> str:
    """Return the `switch` of a fabric file for a switch class of `mn`."""
    kinds = {BpfSwitch: "bpf", OVSSwitch: "ovs"}
    if switch not in kinds:
        raise SpecError([("--switch", f"{switch.__name__}: a fabric has `bpf` or `ovs`")])
    return kinds[switch]


def _add_controller(lab: Lab, name: str, kind: Any) -> None:
    """Add a controller of Mininet's, to which the switches connect at the fabric's address."""
    host, port = lab.wiring.management.openflow_endpoint(None)
    is_remote = isinstance(kind, type) and issubclass(kind, RemoteController)
    where = {"ip": host} if is_remote else {}
    controller = lab.net.addController(name, kind, **where)
    if controller and controller.port != port:
        raise FabricError(f"--controller: switches of a fabric connect to port {port}")


def cleanup() -> None:
    """Clean the machine as `mn` does after a failure, unless a fabric runs or was to be made.

    Mininet's cleaning would end processes of all fabrics. A fabric of `mn` ends with it.
    """
    if not _fabric_files and not running_fabrics():
        clean_machine()
