"""Injection: taking something from a running fabric, giving it back, and seeing what is gone; by the fabric's name, from any process of the machine."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from emulator import asking, lifecycle
from moefabric.errors import FabricError, SpecError
from moefabric.failure_log import note
from moefabric.management import RunDir, Wiring
from moefabric.topology import Nic, Region

PORT: Final = "ocs-port"
"""A port of an optical switch, named after the NIC on it: no light through either fibre, and no command for it."""
HARDWARE: Final = ("nic", "server", "ocs")
"""Kinds that the fabric process does itself (`emulator.outages`)."""
KINDS: Final = (*HARDWARE, PORT)


def inject(run_dir: RunDir, kind: str, what: Sequence[str]) -> dict[str, Any]:
    """Take these away: NICs (`s0/e0`), servers (`s3`), optical switches (`ocs0`) or their ports (kind `ocs-port`, `s0/o0`).

    The answer: `at_ns` (CLOCK_MONOTONIC) just before it was done, `faults` that there are now. FabricError for what isn't there.
    """
    if kind != PORT:
        said = lifecycle.ask(run_dir, {"do": "fault", "inject": {"kind": kind, "what": list(what)}})
        note(run_dir, "inject", kind, what, at_ns=int(said["at_ns"]))
        return said
    wiring, at_ns = _wiring(run_dir), 0
    for region, ports in [ports_of(wiring, name) for name in what]:
        suffered = {"ill": "port", "ports": list(ports), "value": 0.0, "times": None}
        said = asking.ask(run_dir.plant(region), {"do": "inject", "fault": suffered})
        at_ns = at_ns or int(said.get("at_ns", 0))
    note(run_dir, "inject", kind, what, at_ns=at_ns or None)
    return {"at_ns": at_ns, "faults": injected(run_dir)}


def clear(run_dir: RunDir, kind: str | None = None, what: Sequence[str] = ()) -> dict[str, Any]:
    """Give back what is named, all of a kind, or all that there is of any. The answer is that of `inject`; FabricError where it isn't gone."""
    at_ns = 0
    if kind != PORT:
        said = lifecycle.ask(run_dir, {"do": "fault", "clear": {"kind": kind, "what": list(what)}})
        at_ns = int(said["at_ns"])
        for gone in said["gone"]:
            note(run_dir, "clear", gone["kind"], gone["what"], at_ns=at_ns)
    if kind in (None, PORT):
        healed = list(_healed(run_dir, lambda name: kind is None or (name and (not what or name in what))))
        at_ns = at_ns or (healed[0] if healed else 0)
        if what and not healed:
            raise FabricError(f"{', '.join(what)}: no such fault")
    return {"at_ns": at_ns, "faults": injected(run_dir)}


def _healed(run_dir: RunDir, wanted: Callable[[str], object]) -> Iterator[int]:
    """When each fault of optical switches was healed; `wanted` is asked with the NIC whose port it is, or with nothing."""
    wiring = _wiring(run_dir)
    for region in wiring.fabric.regions:
        for one in _suffered(run_dir, region):
            name = (_named(wiring, region, one["ports"]) if one["ill"] == "port" else None) or ""
            if not wanted(name):
                continue
            said = asking.ask(run_dir.plant(region), {"do": "heal", "number": one["number"]})
            at_ns = int(said.get("at_ns", 0))
            if name:
                note(run_dir, "clear", PORT, [name], at_ns=at_ns or None)
            yield at_ns


def injected(run_dir: RunDir) -> list[dict[str, Any]]:
    """What is gone: `kind`, `what`, `number` and `at_ns` of each; of an optical switch all that it suffers from, with its words."""
    found: list[dict[str, Any]] = list(lifecycle.ask(run_dir, {"do": "fault"})["faults"])
    wiring = _wiring(run_dir)
    for region in wiring.fabric.regions:
        for one in _suffered(run_dir, region):
            assert region.ocs is not None
            name = _named(wiring, region, one["ports"]) if one["ill"] == "port" else None
            kind = PORT if name else f"ocs {one['ill']}"
            found.append({"kind": kind, "what": [name or region.ocs.name], "ocs": region.ocs.name, **one})
    return found


def powerless(run_dir: RunDir, ocs: str) -> bool:
    """Whether an optical switch has no power."""
    standing = lifecycle.ask(run_dir, {"do": "fault"})["faults"]
    return any(one["kind"] == "ocs" and ocs in one["what"] for one in standing)


def ports_of(wiring: Wiring, name: str) -> tuple[Region, tuple[int, int]]:
    """The region of an optical NIC, and the input and output of its OCS that it is plugged into. SpecError where there is none such."""
    fabric = wiring.fabric
    known = {str(nic): nic for server in fabric.servers for nic in fabric.optical_nics(server)}
    if name not in known:
        said = f" is not one of {', '.join(known)}" if known else ": the fabric has no optical NICs"
        raise SpecError([("", f"{name}{said}")])
    nic: Nic = known[name]
    region = fabric.region_of[nic.server]
    assert region.ocs is not None
    port = fabric.ocs_port(nic)
    return region, (port, region.ocs.ports + port)


def _named(wiring: Wiring, region: Region, ports: Sequence[int]) -> str | None:
    """The NIC whose both fibres these ports are."""
    for server in region.servers:
        for nic in wiring.fabric.optical_nics(server):
            if tuple(ports) == ports_of(wiring, str(nic))[1]:
                return str(nic)
    return None


def _suffered(run_dir: RunDir, region: Region) -> list[dict[str, Any]]:
    """What a region's optical switch suffers from; nothing where it has none, or nobody serves it."""
    if region.ocs is None or not run_dir.plant(region).exists():
        return []
    try:
        return list(asking.ask(run_dir.plant(region), {"do": "list"})["faults"])
    except FabricError:
        return []


def _wiring(run_dir: RunDir) -> Wiring:
    try:
        return Wiring.from_json(run_dir.wiring.read_bytes())
    except (OSError, ValueError) as absent:
        raise FabricError(f"{run_dir.name}: no fabric of this name runs; see `moefabric up`") from absent
