"""Events of a fabric as people read them: NICs instead of ports, and wall time."""

import time
from datetime import UTC, datetime

from moefabric.core.topology import Fabric, nic_at
from moefabric.core.units import NS_PER_S
from moefabric.results.parts import Json


def event_text(event: Json, fabric: Fabric) -> str:
    """Return what an event was about: circuits, NICs, reasons.

    Args:
        event: An event of `Lab.events`.
    """
    region = next(region for region, ocs in fabric.ocses.items() if ocs.name == event["ocs"])
    inputs = fabric.ocses[region].ports

    def nic(port: int) -> str:
        return str(nic_at(fabric, region, port) or f"port {port}")

    def paths(key: str) -> str:
        """Name circuits, and cross-connects without the one of the other direction."""
        listed = [(a, b) for a, b in event.get(key, ())]
        circuits = {(b - inputs, a + inputs) for a, b in listed if b - inputs != a} & {*listed}
        names = (
            "~".join(sorted((nic(a), nic(b))))
            if (a, b) in circuits
            else f"{nic(a)} to {nic(b)} (one way)"
            for a, b in listed
        )
        return " ".join(dict.fromkeys(names))

    parts = [
        f"removed {paths('parted')}" * bool(event.get("parted")),
        f"connected {paths('made')}" * bool(event.get("made")),
        " ".join(dict.fromkeys(map(nic, event.get("ports", ())))),
        event.get("words", ""),
    ]
    return "; ".join(filter(None, parts))


def wall_time(at_ns: int) -> datetime:
    """Return the wall time, UTC, of an instant of the monotonic clock of this machine."""
    seconds = time.time() - time.monotonic() + at_ns / NS_PER_S
    return datetime.fromtimestamp(seconds, UTC)


def iso_time(at_ns: int) -> str:
    """Return the wall time, UTC, of an instant of the monotonic clock as ISO 8601."""
    return wall_time(at_ns).isoformat(timespec="microseconds")


def event_line(event: Json, fabric: Fabric) -> str:
    """Return an event as a line: time of day (UTC), OCS, kind, and what it was about.

    Args:
        event: An event of `moefabric.api.fabric_events.fabric_events`.
    """
    if "ocs" in event:
        source, text = event["ocs"], event_text(event, fabric)
    else:
        seen = ", last seen at this instant" if event["kind"] == "lost" else ""
        why = seen + (f": {event['why']}" if event.get("why") else "")
        source, text = "fabric", f"{event['failure']} {' '.join(event['what'])}{why}"
    clock = wall_time(event["at_ns"]).isoformat(timespec="milliseconds")[11:23]
    return f"{clock} {source:6} {event['kind']:14} {text}".rstrip()
