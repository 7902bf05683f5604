"""A region's OCS behind its driver: converts circuits to cross-connects and reads them back.

A command whose answer is lost is not simply repeated. The cross-connects are read from the device,
and only the missing changes are commanded again.
"""

import logging
import os
import socket
import time
from collections.abc import Callable
from math import inf
from typing import Final, Protocol, runtime_checkable

from moefabric.config.plugins import OCS_DRIVERS, load_plugin
from moefabric.controller.http_client import Dial, NoResponseError, ResponseTimeoutError
from moefabric.controller.southbound.ocs.cross_connects import (
    CrossConnect,
    CrossConnectChange,
    PortConflictError,
    RequestedChange,
    difference,
    plan_change,
)
from moefabric.core import circuits
from moefabric.core.circuits import CircuitSet, Transition
from moefabric.core.closing import Closing
from moefabric.core.errors import ControlError, MisconfiguredError
from moefabric.core.ocs import CrossConnectMode, Ocs, OcsControl
from moefabric.core.ocs_dialect import DriverSettings, OcsDriverFactory
from moefabric.core.topology import Fabric, Region

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
_CACHE_S: Final = 0.1
"""Time for which cross-connects that were read count as the device's state, except in safe mode."""
_NEVER: Final[tuple[float, tuple[CrossConnect, ...]]] = -inf, ()
"""Instant at which cross-connects were read, and the cross-connects."""


class DeviceDriver(Protocol):
    """A device behind its command language.

    Each method raises NoResponseError if the device doesn't answer, ControlError for other errors.
    """

    @property
    def name(self) -> str:
        """The device's name in errors."""

    def cross_connects(self) -> tuple[CrossConnect, ...]:
        """Return the cross-connects of the device, settled or not."""

    def apply(self, change: CrossConnectChange) -> str | None:
        """Command removals, then additions; return when the device has accepted them.

        Returns:
            The device's error if it refuses; part of the change may have been executed then.
        """

    def wait_settled(self, deadline_s: float) -> None:
        """Wait until all accepted cross-connects have light; raise ControlError if they don't."""

    def close(self) -> None:
        """Close the connection."""


@runtime_checkable
class PipeliningDriver(DeviceDriver, Protocol):
    """A driver that can ask for the cross-connects while it waits for light."""

    def settled_cross_connects(self, deadline_s: float) -> tuple[CrossConnect, ...]:
        """Return the cross-connects of the moment when all have light.

        Raises:
            ControlError: As `wait_settled` and `cross_connects`.
        """


@runtime_checkable
class SizedDriver(DeviceDriver, Protocol):
    """A driver that can ask for the size of the device."""

    def size(self) -> tuple[int, int] | None:
        """Return the number of inputs and of outputs; None if the device doesn't tell."""


def requested_change(fabric: Fabric, region: Region, transition: Transition) -> RequestedChange:
    """Return a transition as cross-connects of a region's OCS."""
    parts = (transition.teardown, transition.kept, transition.setup)
    return RequestedChange(*(circuits.cross_connects(fabric, region, part) for part in parts))


class RemoteOcs(Closing):
    """An `OpticalSwitch` over a driver.

    It leaves cross-connects on ports of other users alone.

    Attributes:
        has_strays: As in `OpticalSwitch`.
    """

    def __init__(self, fabric: Fabric, region: Region, driver: DeviceDriver) -> None:
        if region.ocs is None:
            raise ValueError(f"{region.name} has no OCS")
        is_real, self._ports = region.ocs.control.address is not None, region.ocs.ports
        self._sized = driver if is_real and isinstance(driver, SizedDriver) else None
        self._is_measured = False
        self.fabric, self.region, self.name, self._driver = fabric, region, region.ocs.name, driver
        self._recent, self.has_strays = _NEVER, False
        first, n = region.ocs.first_port, region.ocs.ports
        inputs = range(first, first + len(region.servers) * fabric.optical)
        self._own_ports = frozenset(inputs) | {n + port for port in inputs}

    def close(self) -> None:
        """Close the connection; circuits stay lit."""
        self._driver.close()

    def circuits(self) -> CircuitSet:
        """Return the circuits that are cross-connected in both directions."""
        self._measure()
        current = self._read()
        self._recent = time.monotonic(), current
        lit = circuits.circuits_from_cross_connects(self.fabric, self.region, current)
        self.has_strays = len(current) > 2 * len(lit)
        return lit

    def reconfigure(
        self, transition: Transition, mode: CrossConnectMode = CrossConnectMode.SAFE
    ) -> None:
        """Command a transition; return when the device has accepted it.

        Raises:
            ControlError: if the device refuses. Part of the change may be done by then, so the
                earlier cross-connects are restored; the message says whether that worked.
        """
        if transition.is_empty and mode is CrossConnectMode.SAFE:
            return
        self._measure()
        request = requested_change(self.fabric, self.region, transition)
        (read_s, before), self._recent = self._recent, _NEVER  # what `circuits` has read, once
        if mode is CrossConnectMode.SAFE or time.monotonic() - read_s >= _CACHE_S:
            before = self._read()
        try:
            change = plan_change(before, request, mode)
        except PortConflictError as error:
            raise ControlError(f"{self.name} can't: {error}; nothing has changed") from error
        refusal = self._apply(change, before)
        if refusal is None:
            return
        now = self._read()
        if change.applied_to(before) == frozenset(now):
            log.warning("%s has executed the change but answers: %s", self.name, refusal)
            return
        raise ControlError(f"{self.name} refuses: {refusal}; {self._restore(now, before)}")

    def wait_settled(self, deadline_s: float) -> None:
        """Return when all commanded circuits have light; raise ControlError after `deadline_s`."""
        self._driver.wait_settled(deadline_s)

    def settled_circuits(self, deadline_s: float) -> CircuitSet:
        """Return the circuits when all have light; raise ControlError after `deadline_s`."""
        if isinstance(self._driver, PipeliningDriver):
            current = self._driver.settled_cross_connects(deadline_s)
            return circuits.circuits_from_cross_connects(self.fabric, self.region, current)
        self.wait_settled(deadline_s)
        return self.circuits()

    def _read(self) -> tuple[CrossConnect, ...]:
        """Read the cross-connects of own ports; others may change at any time.

        Reconnect once, because a restarted device has hung up.
        """
        try:
            every = self._driver.cross_connects()
        except ResponseTimeoutError:
            raise
        except NoResponseError as error:
            self._is_measured = False
            log.info("reading again: %s", error)
            every = self._driver.cross_connects()
        return tuple([pair for pair in every if not self._own_ports.isdisjoint(pair)])

    def _measure(self) -> None:
        """Refuse a real device on which outputs have other numbers than `ocs.ports` implies.

        It is asked for its size at first, and after a lost connection: another one may answer then.

        Raises:
            MisconfiguredError: If the device has another size.
        """
        if self._sized is None or self._is_measured:
            return
        size = self._sized.size()
        if size is None:
            log.warning("%s doesn't tell its size: ocs.ports isn't checked", self.name)
        elif size[0] != self._ports or size[1] < self._ports:
            inputs, outputs = size
            remedy = f"set ocs.ports: {inputs}" if inputs <= outputs else "it can't be used"
            has = f"the device has {inputs} inputs and {outputs} outputs"
            raise MisconfiguredError(f"{self.name}: {has}, not {self._ports}: {remedy}")
        self._is_measured = True

    def _apply(self, change: CrossConnectChange, before: tuple[CrossConnect, ...]) -> str | None:
        """Apply a change, and after a lost answer its missing part; return the refusal."""
        target = change.applied_to(before)
        for attempts_left in reversed(range(_ATTEMPTS)):
            if not change:
                return None
            try:
                refusal = self._driver.apply(change)
            except NoResponseError as error:
                self._is_measured = False
                if not attempts_left:
                    raise
                log.warning("reading back: %s", error)
                self._measure()
                change = difference(self._read(), target)
            else:
                log.info("%s: disconnect %s, connect %s", self.name, change.remove, change.add)
                return refusal
        return None

    def _restore(self, now: tuple[CrossConnect, ...], before: tuple[CrossConnect, ...]) -> str:
        """Restore the earlier cross-connects; return a description of the outcome."""
        try:
            refusal = self._apply(difference(now, before), now)
        except ControlError as error:
            refusal = str(error)
        if refusal is None:
            return "nothing has changed"
        return f"part of it may be done, for it can't be undone either: {refusal}"


TIMEOUT_S: Final = 2.0
"""Timeout for an answer that doesn't wait for light."""


def _factory(control: OcsControl) -> OcsDriverFactory:
    factory: OcsDriverFactory = load_plugin(OCS_DRIVERS, control.driver, OcsDriverFactory)
    return factory


def device_address(control: OcsControl, emulated_host: str) -> tuple[str, int]:
    """Return host and port of the OCS: the configured ones, else those of the emulated OCS."""
    return control.address or emulated_host, control.port or _factory(control).default_port


def account(control: OcsControl) -> tuple[str, str]:
    """Return the configured user and password, else the factory's.

    The configuration names an environment variable that contains the password.

    Raises:
        ControlError: if that variable is not set.
    """
    user, password = _factory(control).factory_account
    user = control.user or user
    if (name := control.password_env) is not None:
        if name not in os.environ:
            raise ControlError(f"ocs.password_env: {name} is not in the controller's environment")
        password = os.environ[name]
    return user, password


def make_driver(
    ocs: Ocs,
    address: tuple[str, int],
    timeout_s: float = TIMEOUT_S,
    dial: Dial = socket.create_connection,
    sleep: Callable[[float], object] = time.sleep,
) -> DeviceDriver:
    """Return the driver for an OCS at an address; nothing is connected yet.

    Args:
        timeout_s: How long an answer that doesn't wait for light may take.
        dial: Opens TCP connections; in a process that runs on Eventlet, one of Eventlet's.
        sleep: Waits for a number of seconds; in a process that runs on Eventlet, Eventlet's.
    """
    user, password = account(ocs.control)
    settings = DriverSettings(ocs, address, timeout_s, user, password, dial, sleep)
    driver: DeviceDriver = _factory(ocs.control).open(settings)
    return driver
