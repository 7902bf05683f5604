"""Failures of a running fabric, the faults of its optical switches, and their events."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from moefabric.api.fabric_view import FabricView
from moefabric.api.ocs_events import iso_time
from moefabric.api.ocs_failures import OCS_FAULTS, ocs_request, region_of_ocs
from moefabric.core.errors import FabricError, SpecError
from moefabric.core.failure_kinds import INJECTABLE, FailureKind
from moefabric.core.failures import ControllerFailureMode, Failure
from moefabric.emulator.fabric import hardware_injection
from moefabric.emulator.ocs import client as ocs_client
from moefabric.results.parts import Json
from moefabric.testbed import failure_injection

T = TypeVar("T")


class FailureInjection(FabricView):
    """Makes components of a fabric fail, and work again."""

    def fault(self, kind: str, *what: str, mode: str = "kill") -> "InjectedFailure":
        """Make components fail. In a `with`, the failure is cleared at the end.

        Args:
            kind: `nic`, `ocs-port`, `ocs`, `gpu`, `server` or `controller`. `ocs_fault` has
                further faults of OCSes.
            *what: NICs (`s0/e0`), optical NICs (`s0/o0`), OCSes, GPUs (`s1/3`), servers, or
                controllers (`r0`, `eps`).
            mode: With `controller`: `kill` its process, which is started again, or `stop` it.
                Controllers that share the process fail with it.

        Raises:
            SpecError: If the kind is unknown, or the fabric lacks the components.
            FabricError: If they can't be made to fail.
        """
        what = tuple(dict.fromkeys(what))  # one failure each, also of a component named twice
        failure = Failure(_one_of(INJECTABLE, kind), what, _one_of([*ControllerFailureMode], mode))
        if not what:
            raise SpecError([("fault", f"which {kind}?")])
        if failure.kind is FailureKind.OCS and what[0] in OCS_FAULTS:
            remedy = "`ocs` takes names of OCSes, whose power is lost; give ocs-port, or ocs_fault"
            raise SpecError([("fault", f"{remedy}({', '.join(map(repr, what))})")])
        self._check_emulated(failure)
        if failure.kind in failure_injection.LOGGED_KINDS:
            failure = failure_injection.inject(self.run_directory, failure)
        else:
            hardware_injection.inject(self.run_directory, str(failure.kind), what)
        return InjectedFailure(self, failure)

    def _check_emulated(self, failure: Failure) -> None:
        """Refuse failures of OCSes that are not emulated."""
        match failure.kind:
            case FailureKind.OCS:
                names = {*failure.what} & {ocs.name for ocs in self.fabric.ocses.values()}
            case FailureKind.OCS_PORT:
                servers = {word.partition("/")[0] for word in failure.what}
                regions = (self.fabric.region_of.get(server) for server in servers)
                names = {region.ocs.name for region in regions if region and region.ocs}
            case _:
                return
        for name in sorted(names):
            region_of_ocs(self.fabric, name)

    def clear(self, kind: str | None = None, *what: str) -> list[Json]:
        """Clear failures of some components, of a kind, or all; return the remaining ones.

        Args:
            kind: As in `fault`. Default: all kinds, with the faults of OCSes.
            *what: The components. Default: all of the kind.

        Raises:
            SpecError: If the kind is unknown.
            FabricError: If one of the components has not failed.
        """
        chosen = _one_of(INJECTABLE, kind) if kind else None
        if chosen in failure_injection.LOGGED_KINDS and what:
            failure_injection.clear(self.run_directory, Failure(FailureKind(chosen), what))
            return self.faults()
        for failure in failure_injection.logged_failures(self.run_directory):
            if chosen in (None, failure.kind) and not what:
                failure_injection.clear(self.run_directory, failure)
        if chosen not in failure_injection.LOGGED_KINDS:
            hardware_injection.clear(self.run_directory, chosen, what)
        return self.faults()

    def faults(self) -> list[Json]:
        """Return the present failures, each with `kind` and `what`."""
        processes = [
            {"kind": str(failure.kind), "what": list(failure.what)}
            for failure in failure_injection.logged_failures(self.run_directory)
        ]
        return [*hardware_injection.injected_failures(self.run_directory), *processes]

    # --- optical switches ------------------------------------------------------------------------

    def ocs(self, name: str = "ocs0") -> Json:
        """Return identity, start-up mode, ports and `power` of an OCS.

        Without power, all ports are `failed`: none has a partner or a reading.
        """
        reply = self._ocs_faults(name, {"do": "show"})
        if not reply["power"]:
            off = {"state": "failed", "partner": None, "power_dbm": None}
            reply["ports"] = [port | off for port in reply["ports"]]
        return reply

    def ocs_fault(
        self,
        kind: str | None,
        *arguments: str,
        ocs: str = "ocs0",
        times: int | None = None,
        db: float | None = None,
        after: bool = False,
    ) -> "InjectedOcsFailure":
        """Inject a fault into an OCS, and return its faults and whether it has power.

        In a `with`, the fault is cleared at the end.

        Args:
            kind: `port`, `stuck`, `loss`, `reject`, `delay`, `drop-completion`, `reset`,
                `partial-apply`, `reboot` or `down`; `list` or None lists the faults.
            *arguments: Ports (numbers or NICs), a path (`1-17` or `s0/o0~s1/o0`), a time or a
                number, as the kind needs.
            ocs: Name of the OCS.
            times: With faults of commands: number of commands that are affected. Default: all.
            db: With `loss`: additional loss in dB. Default: 30.
            after: With `reset`: once the command is done, before the reply.

        Raises:
            SpecError: If the kind or its arguments are wrong.
            FabricError: If the OCS refuses.
        """
        region = region_of_ocs(self.fabric, ocs)
        request = ocs_request(kind, arguments, self.fabric, region, times=times, db=db, after=after)
        if kind == "down":
            failure = self.fault("ocs", ocs)
            return InjectedOcsFailure(self._ocs_faults(ocs, request), failure.clear)
        if kind == "port" and times is None and not any(map(str.isdecimal, arguments)):
            failure = self.fault("ocs-port", *arguments)
            return InjectedOcsFailure(self._ocs_faults(ocs, {"do": "list"}), failure.clear)
        reply = self._ocs_faults(ocs, request)
        if request["do"] != "inject":
            return InjectedOcsFailure(reply)
        number = max(fault["number"] for fault in reply["faults"])
        return InjectedOcsFailure(reply, lambda: self._end_ocs_fault(number, ocs))

    def ocs_clear(self, number: int | None = None, ocs: str = "ocs0") -> Json:
        """Clear the fault of an OCS with this number, or all; return as `ocs_fault`."""
        region_of_ocs(self.fabric, ocs)
        if number is None:
            for entry in hardware_injection.injected_failures(self.run_directory):
                affected = (entry.get("ocs"), *entry["what"])
                if entry["kind"] in ("ocs", hardware_injection.PORT) and ocs in affected:
                    hardware_injection.clear(self.run_directory, entry["kind"], entry["what"])
        return self._ocs_faults(ocs, {"do": "clear", "number": number})

    def _end_ocs_fault(self, number: int, ocs: str) -> None:
        """Clear a fault, unless the OCS has dropped it because its `times` are used up."""
        try:
            self.ocs_clear(number, ocs)
        except FabricError:
            active = self._ask_ocs(ocs, {"do": "list"})["faults"]
            if any(fault["number"] == number for fault in active):
                raise

    def events(self, *, follow: bool = False) -> Iterator[Json]:
        """Yield the events of the OCSes: changes, light, faults, alarms.

        Those that are stored come first, in order of time. `at` is the wall time (ISO 8601, UTC),
        `at_ns` that of CLOCK_MONOTONIC.

        Args:
            follow: Whether to wait for new events after the stored ones, until the fabric ends.
        """
        folder, ocses = self.run_directory, self.fabric.ocses
        sockets = {ocs.name: folder.ocs_socket(region) for region, ocs in ocses.items()}
        for name, event in ocs_client.events(sockets, follow=follow):
            yield {"ocs": name, "at": iso_time(event["at_ns"]), **event}

    def _ask_ocs(self, name: str, request: Mapping[str, Any]) -> Json:
        region = region_of_ocs(self.fabric, name)
        return ocs_client.request(self.run_directory.ocs_socket(region), request)

    def _ocs_faults(self, name: str, request: Mapping[str, Any]) -> Json:
        reply = self._ask_ocs(name, request)
        return reply | {"power": not hardware_injection.lacks_power(self.run_directory, name)}


class InjectedFailure(AbstractContextManager["InjectedFailure"]):
    """A failure that was injected; in a `with`, it is cleared at the end."""

    def __init__(self, fabric: FailureInjection, failure: Failure) -> None:
        self.failure = failure
        self._fabric = fabric

    def __repr__(self) -> str:
        return f"InjectedFailure({self.failure})"

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Make the components work again; a killed controller starts by itself."""
        if self.failure.restarts:
            return
        self._fabric.clear(str(self.failure.kind), *self.failure.what)


class InjectedOcsFailure(dict[str, Any], AbstractContextManager["InjectedOcsFailure"]):
    """The faults of an OCS after one was injected; in a `with`, that one is cleared at the end."""

    def __init__(self, reply: Json, clear: Callable[[], object] = lambda: None) -> None:
        super().__init__(reply)
        self._clear = clear

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Clear the fault; the dictionary stays as it is."""
        self._clear()


def _one_of(known: Sequence[T], word: str) -> T:
    """Return the member of an enumeration with this value."""
    for member in known:
        if member == word:
            return member
    raise SpecError([("", f"{word!r} is not one of {', '.join(map(str, known))}")])
