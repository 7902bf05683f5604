"""Watching: what packet switches and an optical switch tell of NICs by themselves comes to a controller's mind, at once and in order."""

import logging
import time
from collections.abc import Callable, Sequence

from controller.control import Control
from controller.failures import News
from controller.southbound.openflow.green import GreenEvent

# isort: split
import eventlet
from eventlet.queue import LightQueue

from moefabric.errors import ControlError
from moefabric.topology import Kind, Nic, Region

log = logging.getLogger(__name__)

_QUIET_S = 0.02
"""So long nothing more has failed before light is planned anew: a switch that loses its power isn't asked for light while its ports still go down."""
_LOUDEST = 50
_AGAIN_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
"""When light and relays are tried for again, where a device or the EPS's controller doesn't do its part; after that a demand has to come."""


class Watch:
    """The news of one controller, told by whom it concerns."""

    def __init__(self, region: Region | None, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """`region` is None for the EPS."""
        self._clock_ns = clock_ns
        self._hangs_on_light = region is not None and region.ocs is not None and region.ocs.link_down
        self._news: LightQueue[News] = LightQueue()
        self._followed = GreenEvent()

    def port(self, _switch: str, plugged: str, up: bool) -> None:  # noqa: FBT001 - as the switches tell it
        """A port of a packet switch has a link, or none."""
        if "/" not in plugged:
            return
        nic = Nic.parse(plugged)
        hangs = self._hangs_on_light and nic.kind is Kind.OPTICAL
        self._news.put(News(nic, up, self._clock_ns(), hangs=hangs))

    def ocs_ports(self, told: Sequence[tuple[Nic, bool]]) -> None:
        """Ports of the optical switch, by what is plugged in, work or are out of order."""
        at_ns = self._clock_ns()
        for nic, works in told:
            self._news.put(News(nic, works, at_ns, port=True))

    def begin(self, control: Control) -> None:
        """Tell a controller of all that comes from now on."""
        eventlet.spawn(self._hear, control)
        eventlet.spawn(self._relight, control)

    def _hear(self, control: Control) -> None:
        while True:
            news = [self._news.get()]
            eventlet.sleep(0)  # what is told already is answered together
            while not self._news.empty():
                news.append(self._news.get())
            try:
                if control.recovery.heard(news):
                    self._followed.set()
            except Exception:  # a fault of ours in one answer leaves the next to be given
                log.exception("news not answered: %s", news)

    def _await_quiet(self) -> None:
        """Until nothing more is told for a while; a NIC that flaps on and on keeps nobody waiting."""
        for _ in range(_LOUDEST):
            if not self._followed.wait(_QUIET_S):
                return
            self._followed = GreenEvent()

    def _relight(self, control: Control) -> None:
        """Move light after what has failed, which may take long, while more is heard."""
        while True:
            while not self._followed.wait(3600):
                pass
            self._followed = GreenEvent()
            for wait_s in _AGAIN_S:
                try:
                    if not control.forward():
                        self._await_quiet()
                    control.relight()
                    break
                except ControlError as fault:
                    log.warning("not lit or relayed yet: %s", fault)
                except Exception:
                    log.exception("not lit anew")
                    break
                if self._followed.wait(wait_s):
                    break
