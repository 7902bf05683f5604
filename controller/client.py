"""Client of a controller's northbound interface."""

import json
import logging
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from ssl import SSLContext
from typing import Any, Final, NoReturn, Self, TypeVar

from moefabric.controller.http_client import Dial, HttpClient
from moefabric.core.closing import Closing
from moefabric.core.errors import ControlError
from moefabric.core.topology import Region
from moefabric.runtime.control_tls import ControlTls
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.runtime.structured_log import baggage, log_context

log = logging.getLogger(__name__)

T = TypeVar("T")

TlsWrap = Callable[[SSLContext, socket.socket], socket.socket]
"""Does the client's part of a TLS handshake on a connection."""
_dial: Final[Dial] = socket.create_connection
_POLL_S: Final = 0.02
_WAITING: Final = "waits for "
_SILENT_S: Final = 3.0
"""Time that an OCS has to answer before waiting for it is worth a line."""
MOST_PLAN_LIMIT_S: Final = 20.0
"""Longest time limit of a policy in a request, since nothing else runs in a controller meanwhile.
It applies to the circuits and again to the split."""


def tls_dial(tls: ControlTls, dial: Dial = _dial, wrap: TlsWrap = SSLContext.wrap_socket) -> Dial:
    """Return a function that opens a TLS connection.

    Args:
        tls: The client's certificate, and the CA that has signed the peer's.
    """
    context = tls.context(server_side=False)

    def dial_tls(address: tuple[str, int], timeout_s: float) -> socket.socket:
        connection = dial(address, timeout_s)
        try:
            return wrap(context, connection)
        except OSError:
            connection.close()
            raise

    return dial_tls


@dataclass(eq=False)
class ControllerClient(Closing):
    """Sends requests to one controller. Every failure raises a ControlError that names it.

    `moefabric.controller.service.northbound` documents the fields of requests and replies.

    Attributes:
        address: Host and TCP port of the northbound interface.
        timeout_s: How long one reply may take.
        dial: Opens the TCP connection; in a process that runs on Eventlet, one of Eventlet's.
        hang_up: Makes a pending request of another thread raise ControlError.
    """

    address: tuple[str, int]
    token: str = field(repr=False)
    timeout_s: float = 60.0
    dial: Dial = socket.create_connection

    def __post_init__(self) -> None:
        """Prepare a connection, which opens with the first request."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        self._http = HttpClient("controller", self.address, self.timeout_s, self.dial, headers)
        self.hang_up = self._http.shut_down

    @classmethod
    def of_region(
        cls,
        wiring: FabricWiring,
        region: Region | None,
        timeout_s: float = 60.0,
        run_dir: RunDirectory | None = None,
        dial: Dial = _dial,
        wrap: TlsWrap = SSLContext.wrap_socket,
    ) -> Self:
        """Return a client of a region's controller.

        Args:
            region: The region; None for the EPS.
            run_dir: The fabric's run directory, which has the token. Default: the one of its name.
            wrap: As for `tls_dial`, which is used if the fabric has certificates.

        Raises:
            ControlError: If others control the region, or the caller may not read the fabric's
                token.
        """
        if region not in wiring.controlled:
            _refuse(wiring, region)
        token = (run_dir or RunDirectory.of_fabric(wiring.fabric.name)).read_token()
        dial = tls_dial(wiring.control_tls, dial, wrap) if wiring.control_tls else dial
        return cls(wiring.management.northbound_endpoint(region), token, timeout_s, dial)

    def with_timeout(self, timeout_s: float) -> "ControllerClient":
        """Return a client of the same controller with another timeout and its own connection."""
        return ControllerClient(self.address, self.token, timeout_s, self.dial)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def demand(
        self,
        matrix: Sequence[Sequence[float]],
        policy: str = "mixnet",
        servers: Sequence[str] | None = None,
        all_to_alls: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """Make the controller plan and light circuits for a demand.

        Args:
            matrix: Bytes of the model from the row's server to the column's.
            policy: Name of the planning policy, or `package.module:Name`.
            servers: The servers of rows and columns; None for the region's, in order.
            all_to_alls: Fields of `moefabric.planner.horizon.Horizon`; None if they are unknown.

        Returns:
            The reply to `POST /demand`: plan, circuits before and after, dark circuits and phases.
        """
        rows = [list(map(float, row)) for row in matrix]
        # The limit applies to circuits and split, and moving light takes time, too.
        limit_s = min(self.timeout_s / 4, MOST_PLAN_LIMIT_S)
        document: dict[str, Any] = {"demand": rows, "policy": policy, "plan_limit_s": limit_s}
        if servers is not None:
            document["servers"] = list(servers)
        if all_to_alls is not None:
            document["all_to_alls"] = dict(all_to_alls)
        return self._reconfigure("/demand", document)

    def light(self, circuits: Sequence[str]) -> dict[str, Any]:
        """Make the controller light exactly these circuits; return the reply without a plan."""
        return self._reconfigure("/light", {"circuits": list(circuits)})

    def health(self) -> dict[str, Any]:
        """Return whether the controller is ready, and which switches are connected."""
        return self._request("GET", "/health")

    def circuits(self) -> list[str]:
        """Return the names of the circuits that carry traffic."""
        return self._field("/circuits", "circuits", list)

    def dark(self) -> list[str]:
        """Return the names of requested circuits that carry no frames."""
        return self._field("/circuits", "dark", list)

    def requested(self) -> list[str]:
        """Return the names of the circuits of the last request, lit or not."""
        return self._field("/circuits", "requested", list)

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules of the controller's switches."""
        return self._field("/rules", "rules", list)

    def counters(self) -> dict[str, list[dict[str, Any]]]:
        """Return the packet and byte counters of each rule, by switch."""
        return self._request("GET", "/counters")

    def statistics(self) -> dict[str, Any]:
        """Return the controller's counters since its start, and its state."""
        return self._request("GET", "/statistics")

    def failures(self, after: int | None = None, wait_s: float = 30.0) -> dict[str, Any]:
        """Return the controller's failure records, the circuits that it uses, and their version.

        Args:
            after: A version: the reply waits for a later one. None for an immediate reply.
            wait_s: How long to wait for a later version, 30 s at most.
        """
        query = "" if after is None else f"?after={after}&wait={wait_s:g}"
        return self._request("GET", f"/failures{query}")

    def relays(self) -> dict[str, str]:
        """Return the relay of each server whose electrical NICs have all failed."""
        return self._field("/relays", "relays", dict)

    def relay(self, region: str, relays: Mapping[str, str]) -> None:
        """Announce the relays of a region to the EPS's controller; they replace earlier ones."""
        self._request("POST", "/relay", {"region": region, "relays": dict(relays)})

    def wait_ready(
        self,
        deadline_s: float,
        check: Callable[[], None] = lambda: None,
        on_wait: Callable[[str], object] = lambda _: None,
    ) -> dict[str, Any]:
        """Wait until all switches are connected and the OCS has answered; return the health.

        Args:
            deadline_s: How long to wait.
            check: Called again and again while the controller isn't ready. Its errors end the wait.
            on_wait: Called with `waits for ...` when the OCS has not answered for some seconds, and
                when the reason changes.

        Raises:
            ControlError: after `deadline_s`, with what is missing; at once if waiting doesn't help.
        """
        started = time.monotonic()
        deadline, reported, lasts = started + deadline_s, "", False
        while True:
            try:
                health = self.health()
                absent = ", ".join(sorted(set(health["expected"]) - set(health["switches"])))
                missing = f"{_WAITING}{absent or health.get('fault') or 'its OCS'}"
                if health["ready"]:
                    return health
                lasts = not absent and bool(health.get("lasts"))
                is_late = time.monotonic() - started > _SILENT_S
                if is_late and not absent and health.get("fault") and missing != reported:
                    on_wait(missing)
                    reported = missing
            except ControlError as error:
                missing = str(error)
            if lasts:
                raise ControlError(missing.removeprefix(_WAITING))
            if time.monotonic() > deadline:
                place = self._http.place
                raise ControlError(f"{place}: not ready within {deadline_s:g} s: {missing}")
            check()
            time.sleep(_POLL_S)  # no event announces a starting process

    def _reconfigure(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Request circuits, with an id by which the logs of all processes can be searched."""
        with log_context(reconfiguration=secrets.token_hex(4)):
            log.info("%s is asked for circuits (%s)", self._http.place, path)
            reply = self._request("POST", path, document)
            total_ms = reply["phases"]["total_s"] * 1e3
            log.info("%s: circuits after %.1f ms", self._http.place, total_ms)
        return reply

    def _field(self, path: str, name: str, kind: type[T]) -> T:
        """Return a field of the reply to a query."""
        field = self._request("GET", path).get(name)
        if not isinstance(field, kind):
            raise ControlError(f"{self._http.place}: {path}: no {name} in its reply")
        return field

    def _request(
        self, method: str, path: str, document: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        status, body = self._http.exchange(method, path, document, {"baggage": baggage()})
        try:
            reply = json.loads(body)
        except (ValueError, RecursionError) as error:
            self.close()
            raise ControlError(f"{self._http.place}: {error}") from error
        if not isinstance(reply, dict):
            self.close()
            raise ControlError(f"{self._http.place}: {path}: its reply is no JSON object")
        if status >= HTTPStatus.BAD_REQUEST:
            raise ControlError(str(reply.get("error", reply)))
        return reply


def _refuse(wiring: FabricWiring, region: Region | None) -> NoReturn:
    """Raise the error of a region or an EPS without a controller of the fabric's own."""
    name, key = region.name if region else "the EPS", f"`controller: {wiring.controller}`"
    address, port = wiring.management.openflow_endpoint(None)
    light = ""
    if region and region.ocs:
        light = f"; {region.ocs.name} itself moves light ({wiring.management.ocs_address(region)})"
    raise ControlError(f"{name} has a controller of others at {address}:{port} ({key}){light}")


def wait_for_controllers(
    wiring: FabricWiring, deadline_s: float, on_wait: Callable[[str], object] = lambda _: None
) -> None:
    """Wait until every controller of a fabric is ready.

    A controller is ready when all its switches have all their rules and its OCS has answered.

    Args:
        on_wait: As for `ControllerClient.wait_ready`.

    Raises:
        ControlError: after `deadline_s`, with the first controller that isn't ready and why; at
            once if the fabric is taken down.
    """
    deadline = time.monotonic() + deadline_s
    check = partial(_check_life, wiring)
    for region in wiring.controlled:
        check()
        with ControllerClient.of_region(wiring, region) as client:
            client.wait_ready(max(0.0, deadline - time.monotonic()), check, on_wait)


def _check_life(wiring: FabricWiring) -> None:
    name = wiring.fabric.name
    if not RunDirectory.of_fabric(name).is_alive():
        raise ControlError(f"{name}: was taken down before its controllers were ready")
