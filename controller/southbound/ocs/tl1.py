"""TL1 over TCP as Polatis devices implement it (Telcordia GR-831).

A session begins with a login. Each command carries a tag, and COMPLD follows once all light has
settled. A message ends with `;`, an acknowledgement with `<`, a part of a longer answer with `>`,
each at the start of a line. Autonomous messages (`A  12 REPT ...`) are skipped here;
`moefabric.controller.southbound.ocs.port_alarms` reads those of ports.
"""

import re
from dataclasses import dataclass
from itertools import count
from typing import Final

from moefabric.controller.http_client import NoResponseError
from moefabric.controller.southbound.ocs.connection import DeviceConnection, LoginRefusedError
from moefabric.controller.southbound.ocs.cross_connects import CrossConnect, CrossConnectChange
from moefabric.core.errors import ControlError
from moefabric.core.ocs_dialect import DriverSettings
from moefabric.runtime.waiting import Deadline

FACTORY_ACCOUNT: Final = ("root", "root")
"""User and password of a Polatis device as delivered."""
MESSAGE_END: Final = re.compile(rb"(?:^|\n)[;<>]")
_SLOW_S: Final = 2.0
"""Time after which a device acknowledges a command that is still in progress (GR-831)."""

_UNSAFE: Final = re.compile(r"[^!-~]|[;:,&\"<>]")
"""Characters that TL1 can't carry in a parameter, or that would end it."""
_RESPONSE = re.compile(r"^M +(\S+) +(COMPLD|DENY|PRTL|DELAY|RTRV)\s*$", re.MULTILINE)
_ACKNOWLEDGEMENT = re.compile(r"^(IP|PF|OK) +(\S+)", re.MULTILINE)
_SIZE = re.compile(r"SYSTEM:SIZE=(\d+)x(\d+)", re.IGNORECASE)
_PATCH = re.compile(r'"(\d+),(\d+)"')
_ACCEPTED: Final = frozenset({"IP", "PF", "OK", "DELAY"})
"""Codes of accepted commands: in progress, printout follows, all right, delayed (GR-831)."""
_COMPLETED: Final = "COMPLD"


@dataclass(frozen=True)
class Tl1Response:
    """A response or acknowledgement: the tag of its command, the completion code and the text."""

    tag: str
    code: str
    text: str = ""

    @property
    def is_error(self) -> bool:
        """True if the command is neither accepted nor completed."""
        return self.code not in {*_ACCEPTED, _COMPLETED}

    def __str__(self) -> str:
        return " ".join([self.code, *self.text.split()])


def check_account(account: tuple[str, str]) -> tuple[str, str]:
    """Return an account, user and password.

    Raises:
        ControlError: If it has characters that TL1 can't carry.
    """
    if any(map(_UNSAFE.search, account)):
        raise ControlError(
            "TL1 login: user and password are printable ASCII without ; : , & < > and quotes; "
            "set another password on the device"
        )
    return account


def parse_message(message: str) -> Tl1Response | None:
    """Return the response in a message; None for an autonomous or unknown message."""
    if match := _RESPONSE.search(message):
        return Tl1Response(match[1], match[2], message[match.end() :].rstrip(";<>").strip())
    if match := _ACKNOWLEDGEMENT.search(message.strip()):
        return Tl1Response(match[2], match[1])
    return None


class Tl1Driver:
    """A `DeviceDriver` that speaks TL1."""

    def __init__(
        self,
        connection: DeviceConnection,
        account: tuple[str, str] = FACTORY_ACCOUNT,
        password_env: str | None = None,
    ) -> None:
        self._connection, self.name, self._account = connection, connection.name, account
        self._password_env = password_env
        self._tags = map(str, count(1))
        self._pending: set[str] = set()
        """Tags of commands that are accepted but not completed."""
        self._responses: dict[str, Tl1Response] = {}
        """Responses to pending commands that came while another one was awaited."""

    def close(self) -> None:
        """Close the connection; no command is pending in the next session."""
        self._connection.close()
        self._pending.clear()
        self._responses.clear()

    def cross_connects(self) -> tuple[CrossConnect, ...]:
        """Return the cross-connects by `RTRV-PATCH`; raise NoResponseError if it is denied."""
        tag = self._command("RTRV-PATCH::")
        deadline, text = Deadline.after(self._connection.timeout_s), ""
        while (response := self._response(tag, "RTRV-PATCH", deadline)).code == "RTRV":
            text += response.text
        if response.code != _COMPLETED:
            self.close()
            raise NoResponseError(f"{self.name}: RTRV-PATCH: {response}")
        return tuple(sorted((int(p), int(q)) for p, q in _PATCH.findall(text + response.text)))

    def size(self) -> tuple[int, int] | None:
        """Return inputs and outputs by `RTRV-EQPT`; None if the device denies it."""
        tag = self._command("RTRV-EQPT::SYSTEM", "::PARAMETER=SIZE")
        deadline = Deadline.after(self._connection.timeout_s)
        match = _SIZE.search(self._response(tag, "RTRV-EQPT", deadline).text)
        return (int(match[1]), int(match[2])) if match else None

    def apply(self, change: CrossConnectChange) -> str | None:
        """Send `DLT-PATCH`, then `ENT-PATCH`; return the errors if either is denied.

        Returns once each is completed, which means settled, or acknowledged as in progress.
        """
        tags: dict[str, str] = {}
        if change.remove:
            inputs = "&".join(str(p) for p, _ in change.remove)
            tags[self._command(f"DLT-PATCH::{inputs}")] = "DLT-PATCH"
        if change.add:
            inputs, outputs = ("&".join(map(str, ports)) for ports in zip(*change.add, strict=True))
            tags[self._command(f"ENT-PATCH::{inputs},{outputs}")] = "ENT-PATCH"
        self._pending.update(tags)
        deadline = Deadline.after(self._connection.timeout_s + _SLOW_S)
        responses = [(verb, self._response(tag, verb, deadline)) for tag, verb in tags.items()]
        errors = [f"{verb}: {response}" for verb, response in responses if response.is_error]
        return "; ".join(errors) or None

    def wait_settled(self, deadline_s: float) -> None:
        """Wait until all accepted commands are completed; raise ControlError if one is denied."""
        deadline, errors = Deadline.after(deadline_s), list[str]()
        for tag in sorted(self._pending):
            while tag in self._pending:
                response = self._response(tag, "the change", deadline)
                errors += [str(response)] if response.is_error else []
        if errors:
            raise ControlError(f"{self.name}: {'; '.join(errors)}")

    def _command(self, command: str, parameters: str = "") -> str:
        """Send a command such as `ENT-PATCH::1,9`, after a login if needed; return its tag."""
        if not self._connection.is_open:
            self.close()
            user, password = check_account(self._account)
            tag = self._send(f"ACT-USER::{user}", f":{password}")
            deadline = Deadline.after(self._connection.timeout_s)
            response = self._response(tag, "ACT-USER", deadline)
            if response.code != _COMPLETED:
                self.close()
                refusal = f"{self.name}: no login as {user}: {response}"
                raise LoginRefusedError(refusal, self._password_env)
        return self._send(command, parameters)

    def _send(self, command: str, parameters: str = "") -> str:
        tag = next(self._tags)
        self._connection.send(f"{command}:{tag}:{parameters};\r\n".encode("ascii"))
        return tag

    def _response(self, tag: str, verb: str, deadline: Deadline) -> Tl1Response:
        """Return the next response to a command; raise NoResponseError if none comes.

        After a NoResponseError no command is pending, because its session has ended.
        """
        while tag not in self._responses:
            try:
                message = self._connection.read_until(MESSAGE_END, verb, deadline)
            except NoResponseError:
                self.close()
                raise
            response = parse_message(message.decode("ascii", "replace").replace("\r", ""))
            if response and (response.tag == tag or response.tag in self._pending):
                self._responses[response.tag] = response
        response = self._responses.pop(tag)
        if response.code not in _ACCEPTED:
            self._pending.discard(tag)
        return response


class Tl1:
    """TL1 over TCP."""

    default_port: int = 3082
    factory_account: tuple[str, str] = FACTORY_ACCOUNT

    def open(self, settings: DriverSettings) -> Tl1Driver:
        """Return a driver that speaks TL1."""
        account, control = (settings.user, settings.password), settings.ocs.control
        return Tl1Driver(DeviceConnection.of(settings), account, control.password_env)
