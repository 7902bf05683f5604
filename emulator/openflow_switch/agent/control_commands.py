"""Commands to the agent's process: lines of JSON on standard input, with one reply each.

`{"make": [{"name", "datapath_id", "ports": {number: interface}}], "management": folder}` creates
switches. Each has a Unix socket `NAME.mgmt` in the folder for OpenFlow tools (`ovs-ofctl -O
OpenFlow13 dump-flows unix:FOLDER/NAME.mgmt`); without a folder, or with null, there is none. With a
`token`, they prove their identity to controllers that ask for it (`core.switch_proof`). With `tls`,
the fields of a `ControlTls`, they connect to controllers by TLS.
`{"connect": {name: [address, port]}}` sets controllers, `{"show": true}` describes the switches.

A reply with `error` gives the reason why a command failed. A failed command has no effect, with one
exception: after a `make` that the kernel refused, some switches may exist, and the caller should
end the process.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moefabric.core.errors import ControlError, FabricError
from moefabric.emulator.openflow_switch.agent.agent import OpenFlowAgent
from moefabric.emulator.openflow_switch.agent.switch import OpenFlowSwitch
from moefabric.emulator.openflow_switch.datapath.interface import Datapath


@dataclass(frozen=True)
class SwitchSpec:
    """A switch to create; `ports` maps port numbers to interface names."""

    name: str
    datapath_id: int
    ports: Mapping[int, str]

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> "SwitchSpec":
        """Parse a document; invalid ones raise KeyError, TypeError, ValueError, AttributeError."""
        ports = {int(number): str(name) for number, name in document["ports"].items()}
        return cls(str(document["name"]), int(document["datapath_id"]), ports)


DatapathFactory = Callable[[Sequence[SwitchSpec]], Iterable[Datapath]]
"""Creates datapaths for switches, in their order, or raises FabricError."""


class ControlCommands:
    """Executes commands for an agent."""

    def __init__(self, agent: OpenFlowAgent, datapaths: DatapathFactory) -> None:
        """Take an agent, and a factory of datapaths."""
        self._agent, self._datapaths = agent, datapaths

    def reply(self, line: bytes) -> bytes:
        """Execute a command, and return its reply as a line."""
        try:
            document = self._execute(json.loads(line))
        except (ControlError, FabricError) as fault:
            document = {"error": str(fault)}
        except (ValueError, TypeError, KeyError, AttributeError) as fault:
            command = line[:200].decode(errors="replace")
            document = {"error": f"{type(fault).__name__}: {fault}: {command}"}
        return json.dumps(document).encode() + b"\n"

    def _execute(self, command: Mapping[str, Any]) -> dict[str, Any]:
        match command:
            case {"make": documents}:
                return self._make([SwitchSpec.parse(document) for document in documents], command)
            case {"connect": controllers}:
                addresses = {n: (str(host), int(port)) for n, (host, port) in controllers.items()}
                self._agent.connect(addresses)
                return {"connecting": len(controllers)}
            case {"show": _}:
                switches = {
                    name: {"connected": c.is_connected, "rules": len(c.switch.tables.entries)}
                    for name, c in self._agent.switches.items()
                }
                return {"switches": switches}
        raise ValueError("neither make nor connect nor show")

    def _make(self, specs: Sequence[SwitchSpec], command: Mapping[str, Any]) -> dict[str, Any]:
        token, folder, tls = (command.get(key) for key in ("token", "management", "tls"))
        context = None
        if tls:
            # Its modules take half a megabyte, which most fabrics don't need.
            from moefabric.runtime.control_tls import ControlTls

            context = ControlTls(**tls).context(server_side=False)
        if duplicates := sorted(spec.name for spec in specs if spec.name in self._agent.switches):
            raise FabricError(f"{', '.join(duplicates)}: made before")
        for spec, datapath in zip(specs, self._datapaths(specs), strict=True):
            interfaces, now_ns = self._agent.interfaces, time.monotonic_ns()
            switch = OpenFlowSwitch(
                spec.datapath_id, datapath, interfaces, now_ns, str(token or "")
            )
            socket_path = Path(folder) / f"{spec.name}.mgmt" if folder else None
            self._agent.add(spec.name, switch, socket_path, context)
        return {"made": len(specs)}
