"""What can go wrong, as a person would say it.

MoefabricError
├── SpecError            the user's file or words are wrong; every fault at once, each with its place
├── UnsupportedError     this machine can't do what was asked; names the remedy
├── FabricError          the emulated hardware failed or is in the wrong state
│   └── CommandFailedError   a program exited with a fault; its whole story, once
├── ControlError         a controller or an OCS refused or did not answer
└── AgentError           an agent is gone, or a transfer was lost or changed
    └── LostError            servers or GPUs are lost to the job; says which
"""

from collections.abc import Iterable, Sequence


class MoefabricError(Exception):
    """Told to the user as one line, without a traceback."""


class SpecError(MoefabricError):
    """Faults of what the user wrote. `faults` holds (place, what is wrong) pairs, all of them."""

    def __init__(self, faults: Sequence[tuple[str, str]]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(f"{place}: {what}" if place else what for place, what in self.faults))


class UnsupportedError(MoefabricError):
    """This machine lacks something that was asked for."""


class FabricError(MoefabricError):
    """The emulated hardware failed, or is not in the state that was asked for."""


class CommandFailedError(FabricError):
    """A program exited with a fault."""

    def __init__(self, argv: Sequence[str], status: int, said: str) -> None:
        self.argv, self.status, self.said = tuple(argv), status, said.strip()
        super().__init__(f"{' '.join(argv)} exited {status}, saying: {self.said or 'nothing'}")


class ControlError(MoefabricError):
    """A controller or an OCS said no, or said nothing in time."""


class AgentError(MoefabricError):
    """An agent is gone, or a transfer did not arrive as it was sent."""


class LostError(AgentError):
    """Servers are gone or silent, or processes of their GPUs have died. `servers` and `gpus` (`s1/3`) are their names."""

    def __init__(self, said: str, servers: Iterable[str] = (), gpus: Iterable[str] = ()) -> None:
        self.servers, self.gpus = frozenset(servers), frozenset(gpus)
        super().__init__(said)
