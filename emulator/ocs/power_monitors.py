"""Power monitors of an optical switch."""

from collections.abc import Collection, Mapping

from moefabric.core.ocs import OpticalLoss
from moefabric.emulator.ocs.device_failures import ActiveFailures
from moefabric.emulator.ocs.light import LightTable
from moefabric.emulator.ocs.port_settings import Admin, PortTable
from moefabric.runtime.event_loop import Timers


class PowerMonitors:
    """Reads the optical power at the ports.

    Methods that take port numbers raise RefusedError for unknown ports.
    """

    def __init__(
        self,
        loss: OpticalLoss,
        timers: Timers,
        ports: PortTable,
        failures: ActiveFailures,
        light: LightTable,
    ) -> None:
        self._loss, self._timers, self._ports = loss, timers, ports
        self._failures, self._light = failures, light

    def exists(self, port: int) -> bool:
        """Return whether a port has a power monitor."""
        self._ports.check([port])
        kind = self._loss.monitors
        return kind == "both" or (kind == "inputs" and self._ports.is_input(port))

    def read_dbm(self, ports: Collection[int]) -> dict[int, float]:
        """Return the readings by port; ports without a monitor are left out."""
        now = self._timers.now_ns()
        received = {
            pair[1]: self._light.received_dbm(pair)
            for pair, lit_at_ns in self._light.shown().items()
            if lit_at_ns <= now
        }
        return {
            port: max(self._loss.floor_dbm, self._received_dbm(port, received))
            + self._ports.settings(port).offset_db
            for port in ports
            if self.exists(port)
        }

    def _received_dbm(self, port: int, received: Mapping[int, float]) -> float:
        """Return the real power: at an input the transceiver's, at an output the path's."""
        loss = self._loss
        admin = self._ports.admin(port)
        if admin is Admin.FAILED:
            return loss.floor_dbm
        if self._ports.is_input(port):
            return loss.launch_dbm
        if port in received:
            return received[port]
        # Light that a loss failure makes too weak for a receiver may still reach a monitor.
        pair = next((pair for pair in self._light.lit_at if pair[1] == port), None)
        is_tuned = pair and admin is Admin.ENABLED and self._light.is_lit(pair)
        if pair and is_tuned and self._failures.loss_db(pair):
            return self._light.received_dbm(pair)
        return loss.floor_dbm
