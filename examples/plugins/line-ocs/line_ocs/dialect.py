"""The protocol as a dialect of the emulated switch: its TCP port, options and front end."""

from dataclasses import dataclass
from typing import Annotated

from moefabric.core.ocs import Spelling
from moefabric.core.ocs_dialect import OcsDialect
from moefabric.emulator.ocs.cross_connects import Pair, RefusedError
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.front_end import Client


@dataclass(frozen=True)
class LineOptions:
    """Line dialect of the switch."""

    separator: Annotated[str, Spelling("[-:]", "- or :")] = "-"
    """Character between the input and the output of a pair."""


class LineFrontEnd:
    """Front end of one switch; its clients share no state."""

    def __init__(self, device: OcsDevice, options: LineOptions) -> None:
        self.device, self.options = device, options

    def open_session(self, client: Client) -> "LineSession":
        """Open the session of a new client."""
        return LineSession(self.device, self.options, client)

    def restart(self) -> None:
        """Keep everything: a reboot of the device resets nothing here."""


class LineSession:
    """Session of a client: the beginning of a line that has not ended."""

    def __init__(self, device: OcsDevice, options: LineOptions, client: Client) -> None:
        self._device, self._separator, self._client = device, options.separator, client
        self._received = b""

    def receive(self, data: bytes) -> None:
        """Execute the lines that these bytes complete."""
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._execute(line.decode("ascii", "replace").strip())

    def end(self) -> None:
        """Forget the incomplete line."""
        self._received = b""

    def _execute(self, line: str) -> None:
        slot = self._client.reserve_reply()
        verb, _, pairs = line.partition(" ")
        if verb == "wait":
            self._device.when_settled(lambda: slot.fill(b"ok\n"))
            return
        try:
            reply = self._answer(verb, pairs)
        except (RefusedError, ValueError) as error:
            reply = f"error {error}"
        slot.fill(f"{reply}\n".encode())

    def _answer(self, verb: str, pairs: str) -> str:
        match verb:
            case "add":
                self._device.add(self._parse(pairs))
            case "sub":
                self._device.sub(self._parse(pairs))
            case "list":
                return ",".join(f"{p}{self._separator}{q}" for p, q in self._device.connects)
            case _:
                raise ValueError(f"{verb} is not one of add, sub, list, wait")
        return "ok"

    def _parse(self, text: str) -> list[Pair]:
        ports = [pair.split(self._separator) for pair in text.split(",")]
        return [(int(p), int(q)) for p, q in ports]


LINE = OcsDialect(port=4001, front_end="line_ocs.dialect:LineFrontEnd", options=LineOptions)
