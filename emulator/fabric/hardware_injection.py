"""Inject, clear and list hardware failures of a running fabric, from any process of the machine."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from moefabric.core.errors import FabricError, SpecError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.nic import Nic
from moefabric.core.topology import Region, ocs_port
from moefabric.emulator.fabric.daemon_protocol import read_wiring, request
from moefabric.emulator.ocs import client as ocs_client
from moefabric.runtime.failure_log import append_failure_event
from moefabric.runtime.run_directory import FabricWiring, RunDirectory

PORT: Final = FailureKind.OCS_PORT
"""Failure of an OCS port, named by its NIC: no light in or out, and commands are refused."""


def inject(run_dir: RunDirectory, kind: str, what: Sequence[str]) -> int:
    """Inject a failure and append it to the fabric's failure log.

    Args:
        run_dir: run directory of the running fabric.
        kind: a FailureKind of the hardware.
        what: NICs (`s0/e0`), servers (`s3`), optical switches (`ocs0`), or, for OCS ports, the
            NICs on them (`s0/o0`); one at least.

    Returns:
        Instant (CLOCK_MONOTONIC, ns) just before the failure took effect.

    Raises:
        FabricError, SpecError: if the fabric has no such component.
    """
    if kind == PORT:
        wiring, replies = read_wiring(run_dir), []
        failed = {nic for _, _, nic in _ocs_faults(run_dir)}
        for region, ports in [ocs_ports(wiring, name) for name in what if name not in failed]:
            fault = {"kind": "port", "ports": list(ports), "value": 0.0, "times": None}
            command = {"do": "inject", "fault": fault}
            replies.append(ocs_client.request(run_dir.ocs_socket(region), command))
    else:
        failure = {"kind": kind, "what": list(what)}
        replies = [request(run_dir, {"do": "fault", "inject": failure})]
    at_ns = int(replies[0]["at_ns"]) if replies else time.monotonic_ns()
    append_failure_event(run_dir, "inject", kind, what, at_ns=at_ns)
    return at_ns


def clear(run_dir: RunDirectory, kind: str | None = None, what: Sequence[str] = ()) -> None:
    """Clear failures and record the clearing in the fabric's failure log.

    Args:
        run_dir: run directory of the running fabric.
        kind: kind of failure; default: all kinds, with all faults of optical switches.
        what: components; default: all.

    Raises:
        FabricError: if none of the named components has failed.
    """
    if kind != PORT:
        reply = request(run_dir, {"do": "fault", "clear": {"kind": kind, "what": list(what)}})
        for failure in reply["cleared"]:
            cleared = failure["kind"], failure["what"]
            append_failure_event(run_dir, "clear", *cleared, at_ns=int(reply["at_ns"]))
        if kind is not None:
            return
    faults = [
        (region, fault, nic)
        for region, fault, nic in _ocs_faults(run_dir)
        if kind is None or (nic and (not what or nic in what))
    ]
    if what and not faults:
        raise FabricError(f"{', '.join(what)}: no such fault")
    for region, fault, nic in faults:
        command = {"do": "clear", "number": fault["number"]}
        reply = ocs_client.request(run_dir.ocs_socket(region), command)
        if nic:
            append_failure_event(run_dir, "clear", PORT, [nic], at_ns=int(reply["at_ns"]))


def injected_failures(run_dir: RunDirectory) -> list[dict[str, Any]]:
    """Return the present failures: `kind`, `what`, `number` and `at_ns` of each.

    Faults of an optical switch that aren't faults of a port have the kind `ocs FAULT`.
    """
    failures: list[dict[str, Any]] = list(request(run_dir, {"do": "fault"})["faults"])
    for region, fault, nic in _ocs_faults(run_dir):
        assert region.ocs is not None
        kind = PORT if nic else f"ocs {fault['kind']}"
        names = {"kind": kind, "what": [nic or region.ocs.name], "ocs": region.ocs.name}
        failures.append(fault | names)
    return failures


def lacks_power(run_dir: RunDirectory, ocs: str) -> bool:
    """Return whether an optical switch has lost its power."""
    failures = request(run_dir, {"do": "fault"})["faults"]
    return any(f["kind"] == FailureKind.OCS and ocs in f["what"] for f in failures)


def ocs_ports(wiring: FabricWiring, name: str) -> tuple[Region, tuple[int, int]]:
    """Return the region of an optical NIC, and its input and output port at the OCS.

    Raises:
        SpecError: if the fabric has no such optical NIC.
    """
    fabric = wiring.fabric
    nics = {str(nic): nic for server in fabric.servers for nic in fabric.optical_nics(server)}
    if name not in nics:
        reason = f" is not one of {', '.join(nics)}" if nics else ": the fabric has no optical NICs"
        raise SpecError([("", f"{name}{reason}")])
    region = fabric.region_of[nics[name].server]
    return region, _port_pair(wiring, region, nics[name])


def _port_pair(wiring: FabricWiring, region: Region, nic: Nic) -> tuple[int, int]:
    assert region.ocs is not None
    port = ocs_port(wiring.fabric, nic)
    return port, region.ocs.ports + port


def _ocs_faults(run_dir: RunDirectory) -> Iterator[tuple[Region, dict[str, Any], str]]:
    """Yield region, fault and NIC of each fault of an optical switch.

    The NIC is empty unless the fault is that of a NIC's port. Switches whose process doesn't run
    are skipped.
    """
    wiring = read_wiring(run_dir)
    for region in wiring.fabric.regions:
        if region.ocs is None:
            continue
        try:
            faults = ocs_client.request(run_dir.ocs_socket(region), {"do": "list"})["faults"]
        except FabricError:
            continue
        nic_at = {
            _port_pair(wiring, region, nic): str(nic)
            for server in region.servers
            for nic in wiring.fabric.optical_nics(server)
        }
        for fault in faults:
            is_port = fault["kind"] == "port"
            yield region, fault, nic_at.get(tuple(fault["ports"]), "") if is_port else ""
