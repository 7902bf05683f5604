"""How whoever started an agent speaks with it: lines of JSON, one answer each.

`{"make": [{"name", "datapath_id", "ports": {number: interface}}], "management": folder}` plugs switches in, each with a Unix socket `NAME.mgmt` in the
folder at which tools find it (`ovs-ofctl -O OpenFlow13 dump-flows unix:FOLDER/NAME.mgmt`); without a folder, or with null, there are none.
`{"connect": {name: [address, port]}}` gives them controllers, `{"show": true}` tells how they are. An answer with `error` says why not, and then nothing was done; but after a `make` that
the kernel refused half-way, some switches may be there, and it is best to end the process.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.switch.agent import Agent
from emulator.switch.openflow_ports import Interfaces
from emulator.switch.openflow_switch import Switch
from emulator.switch.seam import Datapath
from moefabric.errors import FabricError


@dataclass(frozen=True)
class Wanted:
    """A switch to be made: its ports' interfaces by number."""

    name: str
    datapath_id: int
    ports: Mapping[int, str]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "Wanted":
        """KeyError, TypeError or ValueError where it isn't told as it should be."""
        ports = {int(number): str(interface) for number, interface in told["ports"].items()}
        return cls(str(told["name"]), int(told["datapath_id"]), ports)


Made = Callable[[Sequence[Wanted]], Iterable[Datapath]]
"""Datapaths for these switches, in their order. FabricError where they can't be had."""


class Door:
    """Answers lines for an agent."""

    def __init__(
        self, agent: Agent, interfaces: Interfaces, datapaths: Made, clock_ns: Callable[[], int]
    ) -> None:
        self._agent, self._interfaces = agent, interfaces
        self._datapaths, self._clock_ns = datapaths, clock_ns
        self._switches = dict[str, Switch]()

    def answer(self, line: bytes) -> bytes:
        """Do what a line says."""
        try:
            said: dict[str, Any] = self._answer(json.loads(line))
        except FabricError as fault:
            said = {"error": str(fault)}
        except (ValueError, TypeError, KeyError, AttributeError) as fault:
            said = {"error": f"{type(fault).__name__}: {fault}: {line[:200].decode(errors='replace')}"}
        return json.dumps(said).encode() + b"\n"

    def _answer(self, told: Mapping[str, Any]) -> dict[str, Any]:
        match told:
            case {"make": wanted}:
                folder = told.get("management")
                return self._make([Wanted.of(each) for each in wanted], Path(folder) if folder else None)
            case {"connect": controllers}:
                places = {name: (str(address), int(port)) for name, (address, port) in controllers.items()}
                self._agent.connect(places)
                return {"connecting": len(places)}
            case {"show": _}:
                return self._shown()
        raise ValueError("neither make nor connect nor show")

    def _make(self, wanted: Sequence[Wanted], management: Path | None) -> dict[str, Any]:
        if clashing := sorted(each.name for each in wanted if each.name in self._switches):
            raise FabricError(f"{', '.join(clashing)}: made before")
        for each, datapath in zip(wanted, self._datapaths(wanted), strict=True):
            made = Switch(each.datapath_id, datapath, self._interfaces, self._clock_ns())
            self._agent.add(each.name, made, management / f"{each.name}.mgmt" if management else None)
            self._switches[each.name] = made
        return {"made": len(wanted)}

    def _shown(self) -> dict[str, Any]:
        connected = set(self._agent.connected())
        return {
            "switches": {
                name: {"connected": name in connected, "rules": len(switch.tables.entries)}
                for name, switch in self._switches.items()
            }
        }
