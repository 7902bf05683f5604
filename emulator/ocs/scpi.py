"""SCPI as an optical switch of the Polatis kind speaks it: a line in, what changes and what is said out.

Lexical rules after SCPI-99 volume 1 and IEEE 488.2: any case, short or long form of each word, `;` between commands of a line,
where a command without a leading `:` goes on from the path of the one before it, or else from the root. Commands and reply
formats after public drivers of Polatis switches. Each command stands alone: one that is refused changes nothing, is
queued as an error, and those behind it in the line are still done.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from emulator.ocs.store import CrossConnects, Fault, Pair, RefusedError, Store, paired

ERRORS_KEPT = 32
PORTS_IN_A_LIST = 4096


@dataclass(frozen=True)
class ScpiError:
    """An entry of the error queue: a code of SCPI-99 volume 2, chapter 21, and what it was about."""

    code: int
    about: str = ""

    NAMES: ClassVar[Mapping[int, str]] = {
        -100: "Command error",
        -102: "Syntax error",
        -104: "Data type error",
        -108: "Parameter not allowed",
        -109: "Missing parameter",
        -113: "Undefined header",
        -200: "Execution error",
        -221: "Settings conflict",
        -222: "Data out of range",
        -240: "Hardware error",
        -350: "Queue overflow",
        -363: "Input buffer overrun",
    }

    def __str__(self) -> str:
        detail = self.about.replace('"', "'")
        return f'{self.code},"{"; ".join(filter(None, (self.NAMES[self.code], detail)))[:255]}"'


class CommandError(Exception):
    """A command that is not done; `entry` is what the error queue gets."""

    def __init__(self, code: int, about: str = "") -> None:
        self.entry = ScpiError(code, about)
        super().__init__(str(self.entry))


@dataclass(frozen=True)
class Device:
    """All that the switch knows: how it is called, what it joins, what went wrong."""

    identity: str
    store: Store
    errors: tuple[ScpiError, ...] = ()

    def with_error(self, error: ScpiError) -> Self:
        """The same with one error more; a full queue ends in `queue overflow` and forgets what comes after."""
        if len(self.errors) < ERRORS_KEPT:
            return replace(self, errors=(*self.errors, error))
        return replace(self, errors=(*self.errors[:-1], ScpiError(-350)))


@dataclass(frozen=True)
class Said:
    """What a line is answered with, without its line end, and not before `at_ns` (CLOCK_MONOTONIC)."""

    text: str
    at_ns: int


@dataclass(frozen=True)
class Done:
    """A device after a command, and what it says."""

    device: Device
    reply: str | None = None
    at_ns: int = 0


Execute = Callable[[Device, str, int], Done]


def answer(device: Device, line: str, now_ns: int) -> tuple[Device, Said | None]:
    """The device after one line at `now_ns`, and what it replies: the replies of the line's queries, `;` between them."""
    replies: list[str] = []
    at_ns, path = now_ns, ""
    for unit in filter(None, map(str.strip, line.split(";"))):
        try:
            execute, parameters, path = _command(unit, path)
            done = execute(device, parameters, now_ns)
        except CommandError as wrong:
            device = device.with_error(wrong.entry)
            continue
        device = done.device
        if done.reply is not None:
            replies.append(done.reply)
            at_ns = max(at_ns, done.at_ns)
    return device, Said(";".join(replies), at_ns) if replies else None


def _command(unit: str, path: str) -> tuple[Execute, str, str]:
    """Which command a unit is, its parameters, and the path that the next unit may go on from."""
    header, _, parameters = unit.partition(" ")
    if header.startswith("*"):
        spellings = [header]
    elif header.startswith(":"):
        spellings = [] if header.startswith(":*") else [header[1:]]
    else:
        spellings = [f"{path}{header}", header]
    for spelling in spellings:
        for pattern, execute in COMMANDS:
            if pattern.fullmatch(spelling):
                went_on = path if header.startswith("*") else spelling.rpartition(":")[0] + ":"
                return execute, parameters.strip(), went_on
    raise CommandError(-113, header[:64])


def _spelled(header: str) -> re.Pattern[str]:
    """All spellings of a header such as `OXC:SWITch:SIZE?`: capitals are the short form, `[...]` may be left out."""

    def word(found: re.Match[str]) -> str:
        short, rest = found[1], found[2]
        return f"{short}(?:{rest})?" if rest else short

    parts = header.replace("*", r"\*").replace("?", r"\?").replace("[", "(?:").replace("]", ")?")
    return re.compile(re.sub(r"([A-Z]+)([a-z]*)", word, parts), re.IGNORECASE)


LIST = re.compile(r"\(\s*@\s*([^()]*)\)\s*")
ITEM = re.compile(r"([0-9]{1,9})(?:\s*:\s*([0-9]{1,9}))?")


def port_lists(text: str, wanted: int) -> list[list[int]]:
    """The ports of `wanted` lists such as `(@1,2), (@13:14)`; a range may run either way."""
    if not text:
        raise CommandError(-109, f"{wanted} port list{'s' * (wanted > 1)} such as (@1,2)")
    lists: list[list[int]] = []
    at = 0
    while at < len(text):
        found = LIST.match(text, at)
        if not found:
            raise CommandError(-102, f"a port list such as (@1,2), not {text[at:][:64]}")
        lists.append(_ports_of(found[1]))
        at = found.end()
        if at < len(text):
            comma = re.compile(r",\s*(?=\()").match(text, at)
            if not comma:
                raise CommandError(-102, f"a comma and a port list, not {text[at:][:64]}")
            at = comma.end()
    if len(lists) != wanted:
        raise CommandError(-109 if len(lists) < wanted else -108, f"{len(lists)} port lists of {wanted}")
    return lists


def _ports_of(inside: str) -> list[int]:
    if not inside.strip():
        return []
    ports: list[int] = []
    for item in inside.split(","):
        found = ITEM.fullmatch(item.strip())
        if not found:
            raise CommandError(-104, f"a port number, not {item.strip()[:64] or 'nothing'}")
        first, last = int(found[1]), int(found[2] or found[1])
        if len(ports) + abs(last - first) >= PORTS_IN_A_LIST:
            raise CommandError(-222, f"more than {PORTS_IN_A_LIST} ports in a list")
        ports += range(first, last + 1) if first <= last else range(first, last - 1, -1)
    return ports


CODES = {Fault.NO_SUCH_PORT: -222, Fault.CONFLICT: -221, Fault.NOT_CONNECTED: -200, Fault.MISMATCH: -200}


def _moved(change: Callable[[Store, str], CrossConnects]) -> Execute:
    """A command that moves mirrors: `change` says what is to be joined after it."""

    def execute(device: Device, parameters: str, now_ns: int) -> Done:
        try:
            target = change(device.store, parameters)
        except RefusedError as refused:
            raise CommandError(CODES[refused.fault], str(refused)) from refused
        return Done(replace(device, store=device.store.towards(target, now_ns)))

    return execute


def _pairs(parameters: str) -> list[Pair]:
    return paired(*port_lists(parameters, 2))


def _add(store: Store, parameters: str) -> CrossConnects:
    return store.connects.add(_pairs(parameters), store.busy)


def _only(store: Store, parameters: str) -> CrossConnects:
    return store.connects.only(_pairs(parameters))


def _sub(store: Store, parameters: str) -> CrossConnects:
    inputs, outputs = port_lists(parameters, 2)
    if not outputs:  # `(@1),(@)`: from wherever its light goes
        return store.connects.sub_inputs(inputs)
    return store.connects.sub(paired(inputs, outputs))


def _none(store: Store, parameters: str) -> CrossConnects:
    _no(parameters)
    return store.connects.only([])


def _no(parameters: str) -> None:
    if parameters:
        raise CommandError(-108, parameters[:64])


def _asked(query: Callable[[Device], Done]) -> Execute:
    """A command without parameters that moves no mirror."""

    def execute(device: Device, parameters: str, _now_ns: int) -> Done:
        _no(parameters)
        return query(device)

    return execute


def _identity(device: Device) -> Done:
    return Done(device, device.identity)


def _complete(device: Device) -> Done:
    return Done(device, "1", device.store.settled_at_ns)


def _status(device: Device) -> Done:
    return Done(device, str(4 if device.errors else 0))  # IEEE 488.2: bit 2, the error queue holds something


def _size(device: Device) -> Done:
    return Done(device, f"{device.store.ports.inputs},{device.store.ports.outputs}")


def _state(device: Device) -> Done:
    joined = device.store.connects.joined
    return Done(device, f"{_listed(joined)},{_listed(joined.values())}")


def _listed(ports: Iterable[int]) -> str:
    return f"(@{','.join(map(str, ports))})"


def _partner(device: Device, parameters: str, _now_ns: int) -> Done:
    """The port that one port is joined to, asked from either side."""
    if not parameters:
        raise CommandError(-109, "a port number")
    if not re.fullmatch(r"[0-9]{1,9}", parameters):
        raise CommandError(-104, f"a port number, not {parameters[:64]}")
    port, store = int(parameters), device.store
    if port not in store.ports.input_set | store.ports.output_set:
        raise CommandError(-222, f"{port}: ports are 1..{store.ports.output_numbers.stop - 1}")
    partners = {**store.connects.joined, **{q: p for p, q in store.connects}}
    return Done(device, f'"{partners.get(port, "")}"')


def _next_error(device: Device) -> Done:
    if not device.errors:
        return Done(device, '0,"No error"')
    return Done(replace(device, errors=device.errors[1:]), str(device.errors[0]))


def _all_errors(device: Device) -> Done:
    return Done(replace(device, errors=()), ",".join(map(str, device.errors)) or '0,"No error"')


def _clear(device: Device) -> Done:
    return Done(replace(device, errors=()))


COMMANDS: tuple[tuple[re.Pattern[str], Execute], ...] = tuple(
    (_spelled(header), execute)
    for header, execute in (
        ("*IDN?", _asked(_identity)),
        ("*OPC?", _asked(_complete)),
        ("*CLS", _asked(_clear)),
        ("*RST", _moved(_none)),
        ("*STB?", _asked(_status)),
        ("OXC:SWITch:CONNect:ADD", _moved(_add)),
        ("OXC:SWITch:CONNect:ONLY", _moved(_only)),
        ("OXC:SWITch:CONNect:SUB", _moved(_sub)),
        ("OXC:SWITch:CONNect:STATe?", _asked(_state)),
        ("OXC:SWITch:CONNect:PORT?", _partner),
        ("OXC:SWITch:DISConnect:ALL", _moved(_none)),
        ("OXC:SWITch:SIZE?", _asked(_size)),
        ("SYSTem:ERRor[:NEXT]?", _asked(_next_error)),
        ("SYSTem:ERRor:ALL?", _asked(_all_errors)),
    )
)
