"""What the fabric asks of a switch's process, and what that tells the fabric, over their one socket."""

import json
import socket
from collections.abc import Mapping
from typing import Any

from emulator.lines import Lines
from emulator.loop import Loop
from emulator.ocs.build import Links, Outside
from emulator.ocs.events import Event
from emulator.ocs.faults import Fault
from emulator.ocs.matching import RefusedError
from emulator.ocs.store import Store
from emulator.plant import READY
from moefabric.errors import FabricError


class Fabric(Outside):
    """The fabric, as a switch's process tells it things: lines, sent at once."""

    def __init__(self, plant: socket.socket, loop: Loop) -> None:
        """When the fabric's end closes, the loop stops."""
        self._store: Store
        self._plant = plant
        self._loop = loop
        self._lines = Lines(plant, loop, self._heard, loop.stop)

    def links(self, links: Links) -> None:
        self._lines.send({"links": list(links.items())})

    def keep(self, memory: Mapping[str, Any]) -> None:
        self._lines.send({"keep": memory})

    def serve(self, store: Store) -> None:
        """The switch is ready: say so, tell its events, answer what is asked of it."""
        self._store = store
        store.subscribe(self._tell)
        self._plant.setblocking(True)
        self._plant.sendall(READY)
        self._lines.begin()

    def _tell(self, event: Event) -> None:
        """After the client has its reply: whoever follows events can wait that long."""

        def tell() -> None:
            self._lines.send({"event": event.as_json()})

        self._loop.at(self._loop.now_ns(), tell)

    def _heard(self, line: bytes) -> None:
        asked = json.loads(line)
        try:
            said = self._answer(asked)
        except (FabricError, RefusedError) as wrong:
            said = {"error": str(wrong)}
        self._lines.send({"answer": asked["ask"], "said": said})

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        at_ns = self._store.now_ns()
        match asked["do"]:
            case "inject":
                self._store.inject(Fault.from_json(asked["fault"]))
            case "heal":
                self._store.heal(asked.get("number"))
            case "reboot":
                self._store.reboot()
            case "show":
                return shown(self._store)
            case "list":
                pass
            case other:
                raise FabricError(f"{other!r} is not one of inject, heal, reboot, show, list")
        return {"at_ns": at_ns, "faults": [fault.as_json() for fault in self._store.faults]}


def shown(store: Store) -> dict[str, Any]:
    """All that a person may want to see of a switch: who it is, and how each port is."""
    powers = store.powers_dbm(store.all_ports)
    return {
        "identity": vars(store.identity),
        "startup": store.system.startup,
        "ports": [_port(store, port, powers.get(port)) for port in store.all_ports],
        "faults": [fault.as_json() for fault in store.faults],
    }


def _port(store: Store, port: int, power: float | None) -> dict[str, Any]:
    return {
        "port": port,
        "admin": store.admin(port).value,
        "state": store.tuning(port).value,
        "partner": store.partner(port),
        "power_dbm": None if power is None else round(power, 2),
        "label": store.settings(port).label,
    }
