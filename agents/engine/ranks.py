"""Ranks: the processes of a server's GPUs, as far as others have to know: which of them have died."""

from __future__ import annotations

from collections.abc import Iterable

from agents.engine.control import Control


class Ranks:
    """Who has died, told to everyone who has a control channel as soon as it is known."""

    def __init__(self) -> None:
        self.dead: set[int] = set()
        self._listening: list[Control] = []

    def hear(self, control: Control) -> None:
        """This channel is told from now on."""
        if control not in self._listening:
            self._listening = [each for each in self._listening if each.open] + [control]

    def died(self, gpu: int) -> None:
        """The process of this GPU has ended."""
        self.dead.add(gpu)
        self._tell(self._listening, gpu, alive=False)

    def came_back(self, gpu: int) -> None:
        """It runs again."""
        self.dead.discard(gpu)
        self._tell(self._listening, gpu, alive=True)

    @staticmethod
    def _tell(channels: Iterable[Control], gpu: int, *, alive: bool) -> None:
        for control in channels:
            control.say({"event": "rank", "gpu": gpu, "alive": alive})
