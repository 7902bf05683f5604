"""The hierarchy of errors that are reported to the user.

MoefabricError
├── SpecError                the user's file or arguments are wrong; all errors at once
│   ├── UnreadableError      a file can't be opened or read
│   └── TraceError           a trace file is broken
├── UnsupportedError         this machine can't do what was asked; the message names the remedy
├── OutputError              a file of results can't be written
├── FabricError              the emulated hardware failed or is in the wrong state
│   ├── CommandFailedError   a program exited with an error
│   └── MachineLossError     a machine with a part of the fabric is gone
├── ControlError             a controller or an OCS refused or did not answer
│   ├── UnconfirmedError     packet switches did not confirm a change of rules
│   └── MisconfiguredError   waiting doesn't help: a file, a login or a device has to change first
├── RankFailedError          a process of a job exited with an error
└── AgentError               an agent is gone, or a transfer was lost or corrupted
    ├── LostBytesError       bytes of a collective did not arrive
    ├── ServerLossError      servers or GPUs are lost to the job
    ├── RanksLostError       processes of a training program have ended
    └── TrainingProgramError a training program doesn't call as its experiment says
"""

import re
from collections.abc import Iterable, Sequence
from inspect import unwrap
from traceback import walk_tb
from typing import Any, Final

_LIBRARIES: Final = {"moefabric", "functools", "importlib", "numpy", "scipy"}
"""Packages that call code of others on behalf of this one."""


def path_fault(error: OSError) -> str:
    """Return why a system call refused a path, and what to name instead."""
    match error:
        case IsADirectoryError():
            return "is a folder; name a file"
        case NotADirectoryError():
            return "lies in a file, where a folder is needed"
    return error.strerror or str(error)


class MoefabricError(Exception):
    """Base class; the command line prints the message as lines, without a traceback."""


class SpecError(MoefabricError):
    """A file or an argument of the user is wrong.

    Attributes:
        errors: All errors, as (place, what is wrong) pairs; the message has a line for each.
    """

    def __init__(self, errors: Sequence[tuple[str, str]]) -> None:
        self.errors = tuple(errors)
        super().__init__(
            "\n".join(f"{place}: {error}" if place else error for place, error in self.errors)
        )


class UnreadableError(SpecError):
    """A file of the user can't be opened or read."""

    def __init__(self, path: object, error: OSError, place: str = "") -> None:
        """Report an error of the operating system.

        Args:
            path: The file.
            place: Key that names the file; empty if an argument does.
        """
        message = path_fault(error)
        super().__init__([(place, f"{path}: {message}") if place else (str(path), message)])


class TraceError(SpecError):
    """A trace file is broken, or is in no known format."""

    def __init__(self, path: object, place: str, message: str) -> None:
        """Report an error.

        Args:
            path: The file.
            place: Where in the file: a byte offset, a line or a JSON path; empty for all of it.
            message: What is wrong there.
        """
        super().__init__([(f"{path}: {place}" if place else str(path), message)])


class UnsupportedError(MoefabricError):
    """This machine lacks something that was asked for."""


class OutputError(MoefabricError):
    """A file of results can't be written; the message names the file and the remedy."""


class JournalInUseError(OutputError):
    """Another run writes to the journal of results, which is its own."""


class FabricError(MoefabricError):
    """The emulated hardware failed, or is not in the state that was asked for."""


class CommandFailedError(FabricError):
    """A program exited with an error.

    Attributes:
        argv: The command.
        status: Its exit status.
        output: Its output, without surrounding white space.
    """

    def __init__(self, argv: Sequence[str], status: int, output: str) -> None:
        self.argv, self.status, self.output = tuple(argv), status, output.strip()
        super().__init__(f"{' '.join(argv)} exited {status}, saying: {self.output or 'nothing'}")


class MachineLossError(FabricError):
    """A machine with a part of the fabric is gone, or silent; the message names it."""


class ControlError(MoefabricError):
    """A controller or an OCS refused a request, or did not answer in time."""


class UnconfirmedError(ControlError):
    """Packet switches did not confirm a change of rules.

    Attributes:
        switches: The switches that did not confirm; all others did.
    """

    def __init__(self, message: str, switches: Iterable[str]) -> None:
        self.switches = frozenset(switches)
        super().__init__(message)


class MisconfiguredError(ControlError):
    """The fabric's file and a device don't fit: waiting for it doesn't help."""


def some_of(names: Sequence[str], most: int = 24) -> str:
    """Return names as the text of an error has them, with the number of those left out."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


_LOAD_ERRORS: Final = ("ImportError:", "ModuleNotFoundError:", "SyntaxError:", "IndentationError:")
_TORCH_PREFIX: Final = r"^\[rank\d+\]: "
"""PyTorch prints it before each line of a traceback, if the program has joined a group."""
_FRAME: Final = r' +File ".*", line \d+, in '
"""A frame of a traceback by Python, which has no comma there for threads at an abort."""
TORCH_REMEDY: Final = (
    "install PyTorch where ranks run, in moefabric's repository: packaging/setup training, or "
    "pip install '.[fabric,torch]'"
)
_RANK_REMEDIES: Final = {
    r"ModuleNotFoundError: No module named 'torch\b": TORCH_REMEDY,
    r"RuntimeError: Distributed package doesn't have NCCL": (
        "servers have no GPU: init_process_group('gloo'), or 'moefabric'"
    ),
}
"""What mends a rank, by how its last line begins."""


class RankFailedError(MoefabricError):
    """A rank of a job exited with an error, or was ended by a signal.

    Attributes:
        rank: Its number among all ranks.
        server: Where it ran.
        status: Its exit status, negative for a signal.
        last_lines: Its last lines on standard error.
        left: The ranks that had exited 0 before, which others may have waited for.
        saying: The last of them that isn't blank, without PyTorch's prefix. Behind a signal, the
            Python error before it: threads that an exception leaves behind abort the process.
        is_unloadable: Whether Python couldn't load its program, which another start won't mend.
    """

    def __init__(
        self,
        rank: int,
        server: str,
        status: int,
        last_lines: Iterable[str],
        left: Iterable[str] = (),
    ) -> None:
        self.rank, self.server, self.status = rank, server, status
        self.last_lines, self.left = tuple(last_lines), tuple(left)
        end = f"exited {status}" if status > 0 else f"was ended by signal {-status}"
        lines = [re.sub(_TORCH_PREFIX, "", line.rstrip()) for line in self.last_lines]
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        self.saying = last = (status < 0 and _raised_error(lines)) or last
        self.is_unloadable = last.startswith(_LOAD_ERRORS)
        remedies = [remedy for line, remedy in _RANK_REMEDIES.items() if re.match(line, last)]
        remedy = "".join(f"; {remedy}" for remedy in remedies)
        before = f"; before it, {some_of(self.left)} exited 0" if self.left else ""
        super().__init__(f"rank {rank} on {server} {end}, saying: {last}{remedy}{before}")


def _raised_error(lines: Sequence[str]) -> str:
    """Return the error behind the last traceback of a program's output; empty without any."""
    frames = [place for place, line in enumerate(lines) if re.match(_FRAME, line)]
    behind = lines[frames[-1] + 1 :] if frames else []
    return next((line for line in behind if line and not line[0].isspace()), "")


class AgentError(MoefabricError):
    """An agent is gone, or a transfer did not arrive as it was sent."""


class LostBytesError(AgentError):
    """Bytes of a collective did not arrive, although no server is lost."""


class ServerLossError(AgentError):
    """Servers are gone or silent, or processes of their GPUs have died.

    Attributes:
        servers: Names of lost servers (`s1`).
        gpus: Names of lost GPUs (`s1/3`).
        silent_s: Wall seconds of silence that showed the loss; 0 if it was reported.
    """

    def __init__(
        self,
        message: str,
        servers: Iterable[str] = (),
        gpus: Iterable[str] = (),
        *,
        silent_s: float = 0.0,
    ) -> None:
        self.servers, self.gpus = frozenset(servers), frozenset(gpus)
        self.silent_s = silent_s
        super().__init__(message)


class RanksLostError(AgentError):
    """Ranks of a training program have ended before it was done.

    Attributes:
        ranks: Their numbers, as far as they are known.
        gpus: Names of their GPUs (`s1/3`), if their servers reported these.
    """

    def __init__(
        self, message: str, ranks: Iterable[int] = (), *, gpus: Iterable[str] = ()
    ) -> None:
        self.ranks, self.gpus = tuple(ranks), frozenset(gpus)
        super().__init__(message)


class TrainingProgramError(AgentError):
    """A training program made other all-to-alls than its experiment describes."""


def code_place(error: BaseException) -> str:
    """Return where in code of others, such as a plug-in, an exception came up.

    The code is that of the package which this one called.

    Returns:
        The innermost line of that package, such as `/home/a/greedy.py:12`; empty if the exception
        comes from elsewhere.
    """
    package = place = ""
    for frame, line in walk_tb(error.__traceback__):
        caller = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        package = package or ("" if caller in _LIBRARIES else caller)
        if caller == package and not frame.f_code.co_filename.startswith("<"):  # generated
            place = f"{frame.f_code.co_filename}:{line}"
    return place


def fault_text(error: BaseException, called: object = None) -> str:
    """Return an exception in code of others as one line: its type, its message and a place.

    Args:
        called: What was called there. Where it is defined is the place of an exception that comes
            from elsewhere, such as one about what it returned.
    """
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    place = code_place(error) or _definition_place(called)
    return " ".join((f"{text}, {place}" if place else text).split())


def _definition_place(called: object) -> str:
    """Return where a function of others, or the class of an object that is called, is defined."""
    function: Any = unwrap(getattr(called, "func", called))  # type: ignore[arg-type]
    if callable(function) and not hasattr(function, "__code__"):
        function = function.__call__
    code, module = getattr(function, "__code__", None), getattr(function, "__module__", "")
    if code is None or module.partition(".")[0] in _LIBRARIES:
        return ""
    return f"{code.co_filename}:{code.co_firstlineno}"
