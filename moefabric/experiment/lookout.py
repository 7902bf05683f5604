"""The lookout: hears from regions' controllers, as soon as they know, which servers no NIC joins to the others any more."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, Self

from moefabric.errors import ControlError

WAIT_S: Final = 10.0
"""How long a controller may have nothing to tell before it is asked again."""
_AGAIN_S: Final = 0.2
"""And how long one that is away is left alone."""


class Asked(Protocol):
    """A controller that tells of failures."""

    def failures(self, after: int | None = None, wait_s: float = 30.0) -> dict[str, Any]:
        """`version` and all `failures`; with `after`, once the version is later, or after `wait_s`."""

    def hang_up(self) -> None:
        """Let whoever waits for an answer have a ControlError instead; any thread may."""


class Lookout:
    """Threads, one for each controller, from `start` until `close`. What a controller said last holds while it is away."""

    def __init__(self, controllers: Mapping[str, Callable[[], Asked]]) -> None:
        self._cut_off: dict[str, frozenset[str]] = dict.fromkeys(controllers, frozenset())
        self._asked = {region: make() for region, make in controllers.items()}
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._look, args=(region,), name=f"lookout-{region}", daemon=True)
            for region in controllers
        ]

    def unreachable(self, server: str) -> bool:
        """Whether a server is cut off."""
        return any(server in servers for servers in self._cut_off.values())

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for asked, thread in zip(self._asked.values(), self._threads, strict=True):
            while (
                thread.is_alive()
            ):  # one that had just looked may have asked again; it gets no answer either
                asked.hang_up()
                thread.join(_AGAIN_S)

    def _look(self, region: str) -> None:
        version: int | None = None
        while not self._over.is_set():
            try:
                said = self._asked[region].failures(version, WAIT_S)
            except ControlError:
                version = None  # another process may answer next, with versions of its own
                self._over.wait(_AGAIN_S)
                continue
            version = int(said["version"])
            self._cut_off[region] = cut_off(said)


def cut_off(said: Mapping[str, Any]) -> frozenset[str]:
    """The servers all of whose NICs are out, as a controller tells it."""
    standing = (failure for failure in said["failures"] if failure["cleared_ns"] is None)
    return frozenset(failure["what"] for failure in standing if failure["kind"] == "server")
