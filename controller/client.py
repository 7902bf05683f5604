"""A controller as a program sees it: one HTTP connection that stays open, and the errors that it told."""

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from types import TracebackType
from typing import Any, Final, Self

from moefabric.errors import ControlError
from moefabric.management import Wiring

_LOOK_AGAIN_S: Final = 0.02
Dial = Callable[..., socket.socket]


class ControllerClient:
    """Asks the controller that listens at `address`. Every fault is a ControlError that names it."""

    def __init__(self, address: tuple[str, int], timeout_s: float = 60.0, dial: Dial | None = None) -> None:
        """`dial` opens connections, in a program with another idea of waiting."""
        self.address = address
        self._connection = HTTPConnection(*address, timeout=timeout_s)
        if dial is not None:
            self._connection._create_connection = dial  # type: ignore[attr-defined]  # noqa: SLF001 - http.client has no door for it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def hang_up(self) -> None:
        """Let whoever waits for an answer have a ControlError instead; any thread may."""
        if (connection := self._connection.sock) is not None:
            with suppress(OSError):  # it broke off by itself
                connection.shutdown(socket.SHUT_RDWR)

    def demand(
        self, matrix: Sequence[Sequence[float]], policy: str = "mixnet", servers: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Light what a demand deserves: model bytes, from row's server to column's, of all servers of the region.

        The answer: `plan` (DESIGN of `plan --json`), `circuits_before`, `circuits_after`, `dark` (names; the last
        were asked for and carried nothing) and `phases` (wall seconds).
        """
        asked: dict[str, Any] = {"demand": [list(map(float, row)) for row in matrix], "policy": policy}
        return self._ask("POST", "/demand", asked if servers is None else asked | {"servers": list(servers)})

    def light(self, circuits: Sequence[str]) -> dict[str, Any]:
        """Light exactly these circuits, given by name; the answer is that of `demand`, without a plan."""
        return self._ask("POST", "/light", {"circuits": list(circuits)})

    def health(self) -> dict[str, Any]:
        """`ready`, `switches` connected, `expected` ones, whether the `ocs` answered."""
        return self._ask("GET", "/health")

    def circuits(self) -> list[str]:
        """The names of the circuits that traffic relies on."""
        return list(self._ask("GET", "/circuits")["circuits"])

    def dark(self) -> list[str]:
        """The names of the circuits that carried nothing when last they were asked for."""
        return list(self._ask("GET", "/circuits")["dark"])

    def rules(self) -> list[dict[str, Any]]:
        """The rules that the switches have: `switch`, `to`, `out`, `path`, `light` of each."""
        return list(self._ask("GET", "/rules")["rules"])

    def counters(self) -> dict[str, list[dict[str, Any]]]:
        """What each rule has carried, by switch: `rule`, `packets`, `bytes` of each."""
        return self._ask("GET", "/counters")

    def failures(self, after: int | None = None, wait_s: float = 30.0) -> dict[str, Any]:
        """`version`, and all `failures` that the controller found: `what`, `kind`, `detected_ns`, `recovered_ns`, `cleared_ns`, `action` of each.

        With `after`, once the version is later than that, or after `wait_s` (30 s at most).
        """
        asked = "" if after is None else f"?after={after}&wait={wait_s:g}"
        return self._ask("GET", f"/failures{asked}")

    def relays(self) -> dict[str, str]:
        """By server, the peer by which it is reached, where its electrical NICs are all out."""
        return dict(self._ask("GET", "/relays")["relays"])

    def relay(self, region: str, relays: Mapping[str, str]) -> None:
        """Tell the EPS's controller by whom servers of a region are reached; all others directly."""
        self._ask("POST", "/relay", {"region": region, "relays": dict(relays)})

    def wait_ready(self, deadline_s: float) -> dict[str, Any]:
        """Return the health once all switches are connected and the OCS has answered. ControlError after `deadline_s`, with what is missing."""
        ends = time.monotonic() + deadline_s
        while True:
            try:
                health = self.health()
                missing = f"waits for {', '.join(sorted(set(health['expected']) - set(health['switches']))) or 'its OCS'}"
                if health["ready"]:
                    return health
            except ControlError as fault:
                missing = str(fault)
            if time.monotonic() > ends:
                raise ControlError(
                    f"controller at {self._place}: not ready within {deadline_s:g} s: {missing}"
                )
            threading.Event().wait(
                _LOOK_AGAIN_S
            )  # a process that starts has no event that another can wait for

    def _ask(self, method: str, path: str, asked: Mapping[str, Any] | None = None) -> dict[str, Any]:
        body = None if asked is None else json.dumps(asked).encode()
        try:
            self._connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            answer = self._connection.getresponse()
            said = json.loads(answer.read())
        except (OSError, HTTPException, ValueError) as fault:
            self._connection.close()
            raise ControlError(f"controller at {self._place}: {_words(fault)}") from fault
        if answer.status >= 400:
            raise ControlError(str(said.get("error", said)))
        return dict(said)

    @property
    def _place(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"


def _words(fault: Exception) -> str:
    said = fault.strerror if isinstance(fault, OSError) else ""
    return said or str(fault) or type(fault).__name__


def await_controllers(wiring: Wiring, deadline_s: float) -> None:
    """Return once every controller of a fabric is ready: all switches have all their rules, and the OCSes have answered.

    ControlError after `deadline_s`, naming the first controller that isn't and what it waits for.
    """
    ends = time.monotonic() + deadline_s
    eps = [None] if wiring.fabric.leaves else []
    for region in (*eps, *wiring.fabric.regions):
        with ControllerClient(wiring.management.northbound(region)) as client:
            client.wait_ready(max(0.0, ends - time.monotonic()))
