"""The SCPI commands of an optical switch, what each does and says: commands and reply formats after public drivers of Polatis switches.

Each command stands alone: one that is refused changes nothing and is queued as an error. What no public source tells (exact
error codes, the reply of `port?` on an output) follows SCPI-99 and IEEE 488.2.
"""

import re

from emulator.ocs import scpi_common
from emulator.ocs.matching import Refusal, RefusedError, paired
from emulator.ocs.port import Admin
from emulator.ocs.scpi_common import Answer, Execute, asked
from emulator.ocs.scpi_status import Status
from emulator.ocs.scpi_words import CommandError, listed, port_lists, spelled
from emulator.ocs.store import Store

POWERS_IN_A_QUERY = 256

CODES = {
    Refusal.NO_SUCH_PORT: -222,
    Refusal.CONFLICT: -221,
    Refusal.NOT_CONNECTED: -200,
    Refusal.MISMATCH: -200,
    Refusal.FAILED: -241,
    Refusal.DENIED: -203,
    Refusal.HARDWARE: -240,
}


def execute(command: Execute, store: Store, status: Status, parameters: str) -> Answer:
    """Do a command. CommandError, and nothing has changed, where it is refused."""
    try:
        return command(store, status, parameters)
    except RefusedError as refused:
        raise CommandError(CODES[refused.kind], str(refused)) from refused


# ---- cross-connects


def _add(store: Store, _status: Status, parameters: str) -> None:
    store.add(paired(*port_lists(parameters, 2)))


def _only(store: Store, _status: Status, parameters: str) -> None:
    store.only(paired(*port_lists(parameters, 2)))


def _sub(store: Store, _status: Status, parameters: str) -> None:
    inputs, outputs = port_lists(parameters, 2)
    if outputs:
        store.sub(paired(inputs, outputs))
        return
    if strange := sorted(set(inputs) - store.ports.input_set):  # `(@1),(@)`: from wherever its light goes
        raise CommandError(-222, f"{', '.join(map(str, strange))}: inputs are 1..{store.ports.inputs}")
    if len(set(inputs)) < len(inputs):
        raise CommandError(-221, "an input twice")
    store.sub_ports(inputs)


def _none(store: Store, _status: Status) -> None:
    store.clear()


def _state(store: Store, _status: Status) -> str:
    joined = store.connects.joined
    return f"{listed(joined)},{listed(joined.values())}"


def _partner(store: Store, _status: Status, parameters: str) -> str:
    """The port that one port is joined to, asked from either side."""
    if not parameters:
        raise CommandError(-109, "a port number")
    if not re.fullmatch(r"[0-9]{1,9}", parameters):
        raise CommandError(-104, f"a port number, not {parameters[:64]}")
    return f'"{store.partner(int(parameters)) or ""}"'


def _size(store: Store, _status: Status) -> str:
    return f"{store.ports.inputs},{store.ports.outputs}"


# ---- ports


def _disable(store: Store, _status: Status, parameters: str) -> None:
    store.disable(port_lists(parameters, 1)[0])


def _enable(store: Store, _status: Status, parameters: str) -> None:
    store.enable(port_lists(parameters, 1)[0])


LETTER = {Admin.ENABLED: "E", Admin.DISABLED: "D", Admin.FAILED: "F"}


def _port_state(store: Store, _status: Status, parameters: str) -> str:
    ports = port_lists(parameters, 1)[0] if parameters else list(store.all_ports)
    return f"({','.join(LETTER[store.admin(port)] for port in ports)})"


def _power(store: Store, _status: Status, parameters: str) -> str:
    ports = port_lists(parameters, 1)[0]
    if len(ports) > POWERS_IN_A_QUERY:
        raise CommandError(-222, f"{len(ports)} ports of at most {POWERS_IN_A_QUERY}")
    readings = store.powers_dbm(ports)
    if blind := [str(port) for port in ports if port not in readings]:
        raise CommandError(-241, f"no power monitor at port {','.join(blind)}")
    return f"({','.join(f'{readings[port]:.1f}' for port in ports)})"


OPTICAL: tuple[tuple[str, Execute], ...] = (
    ("OXC:SWITch:CONNect:ADD", _add),
    ("OXC:SWITch:CONNect:ONLY", _only),
    ("OXC:SWITch:CONNect:SUB", _sub),
    ("OXC:SWITch:CONNect:STATe?", asked(_state)),
    ("OXC:SWITch:CONNect:PORT?", _partner),
    ("OXC:SWITch:DISConnect:ALL", asked(_none)),
    ("OXC:SWITch:PORT:DISable", _disable),
    ("OXC:SWITch:PORT:ENABle", _enable),
    ("OXC:SWITch:PORT:STATe?", _port_state),
    ("OXC:SWITch:SIZE?", asked(_size)),
    ("PMONitor:POWer?", _power),
)

COMMANDS: tuple[tuple[re.Pattern[str], Execute], ...] = tuple(
    (spelled(header), command) for header, command in (*scpi_common.COMMANDS, *OPTICAL)
)


def found(spelling: str) -> Execute | None:
    """The command of that spelling, without the leading colon."""
    return next((command for pattern, command in COMMANDS if pattern.fullmatch(spelling)), None)
