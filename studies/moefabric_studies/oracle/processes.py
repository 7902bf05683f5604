"""Runs scenarios in other simulators, each in a process of its own Python."""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from typing import Any, Final

from moefabric import MoefabricError
from moefabric_studies.oracle.own_simulators import fluid_bound_s
from moefabric_studies.oracle.results import Completion
from moefabric_studies.oracle.scenario import Scenario, Transport

_HERE: Final = Path(__file__).parent
NS3_PYTHON: Final = _HERE.parents[2] / ".venv-oracle" / "bin" / "python"
SIMGRID_PYTHON: Final = Path("/usr/bin/python3")
_LIMIT_FACTOR, _LIMIT_S = 20, 1.0
"""A packet simulation ends at 20 times the fluid bound and a second more, whatever is left."""


class SimulatorError(MoefabricError):
    """Another simulator failed; the message has the last line that it printed."""


Ended = Callable[[Mapping[str, Any], Completion], object]
"""Function that takes a scenario that has ended, and its completion."""


@dataclass(frozen=True)
class SimulatorProcess:
    """A simulator in a Python of its own.

    Attributes:
        name: Name in messages.
        python: The interpreter that has the simulator.
        program: The program beside this module that it runs.
        module: What the program imports.
        remedy: How to install the simulator.
        version_code: A Python expression of its version.
    """

    name: str
    python: Path
    program: str
    module: str
    remedy: str
    version_code: str

    @property
    def missing(self) -> str | None:
        """Why the simulator can't run, with the remedy; None if it can."""
        remedy = f"{self.name} is not in {self.python}: {self.remedy}"
        if not self.python.exists():
            return remedy
        search = f"from importlib.util import find_spec; exit(find_spec({self.module!r}) is None)"
        probe = subprocess.run([str(self.python), "-c", search], check=False, cwd="/")
        return remedy if probe.returncode else None

    @property
    def version(self) -> str:
        """The simulator's version."""
        code = f"from importlib.metadata import version; print({self.version_code})"
        command = [str(self.python), "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def run(
        self,
        documents: Sequence[Mapping[str, Any]],
        show: Callable[[str], None] = lambda _: None,
        ended: Ended = lambda _document, _completion: None,
    ) -> list[Completion]:
        """Simulate scenarios in JSON form, one after the other.

        Args:
            documents: The scenarios.
            show: Is called when a scenario has ended, with the name of the next one.
            ended: Is called before that, with the scenario and its completion.

        Raises:
            SimulatorError: If the simulator fails.
        """
        command = [str(self.python), str(_HERE / self.program)]
        completions: list[Completion] = []
        with TemporaryFile("w+") as scenarios, TemporaryFile("w+") as log:
            json.dump(list(documents), scenarios)
            scenarios.seek(0)
            try:
                process = Popen(command, stdin=scenarios, stdout=PIPE, stderr=log, text=True)
            except OSError as error:
                raise SimulatorError(f"{self.python}: {error.strerror}") from error
            with process:
                assert process.stdout is not None
                for answer in process.stdout:
                    completions.append(completion_of(json.loads(answer)))
                    for document in documents[len(completions) - 1 :][:1]:
                        ended(document, completions[-1])
                    show(
                        " ".join(document["name"] for document in documents[len(completions) :][:1])
                    )
            log.seek(0)
            last = log.read().strip().splitlines()[-1:] or [f"exit {process.returncode}"]
        if process.returncode or len(completions) != len(documents):
            missing = documents[len(completions) :]
            place = missing[0]["name"] if missing else "end"
            raise SimulatorError(f"{self.name}: {place}: {last[0]}")
        return completions

    def run_side_by_side(
        self,
        documents: Sequence[Mapping[str, Any]],
        processes: int,
        show: Callable[[str], None] = lambda _: None,
        ended: Ended = lambda _document, _completion: None,
    ) -> list[Completion]:
        """Simulate scenarios as `run` does, in several processes; results keep their order."""
        shares = [documents[first::processes] for first in range(processes)]
        with ThreadPoolExecutor(processes) as pool:
            answered = list(
                pool.map(partial(self.run, show=show, ended=ended), filter(None, shares))
            )
        return [answered[n % processes][n // processes] for n in range(len(documents))]


def completion_of(document: Mapping[str, Any]) -> Completion:
    """Return the completion that a simulator's process answered."""
    flows = document["flows"]
    return Completion(
        ends_s=tuple(flow["end_s"] for flow in flows),
        sent_packets=sum(flow.get("sent_packets", 0) for flow in flows),
        lost_packets=sum(flow.get("lost_packets", 0) for flow in flows),
        wall_s=document["wall_s"],
    )


def ns3(python: Path = NS3_PYTHON) -> SimulatorProcess:
    """Return ns-3 in a Python environment."""
    return SimulatorProcess(
        "ns-3", python, "ns3_process.py", "ns", "run packaging/oracle", "version('ns3')"
    )


def simgrid(python: Path = SIMGRID_PYTHON) -> SimulatorProcess:
    """Return SimGrid in the system's Python."""
    version = "__import__('simgrid').simgrid_version"
    remedy = "run packaging/oracle, which installs Debian's python3-simgrid"
    return SimulatorProcess("SimGrid", python, "simgrid_process.py", "simgrid", remedy, version)


def packet_document(scenario: Scenario, transport: Transport) -> dict[str, Any]:
    """Return the input of a packet simulator: a scenario of one step, and a transport."""
    limit_s = _LIMIT_FACTOR * fluid_bound_s(scenario) + _LIMIT_S
    return scenario.to_json() | {"transport": transport.to_json(), "limit_s": limit_s}
