"""Runs the cases in a program of MixNet's packet simulator, and stores when they end.

The program takes the name of a network, a file with the number of servers and rows of bytes, the
rate of a NIC in Mb/s, the optical NICs of a server, and a seed. `-rotated` after the network's name
has each server begin with another receiver. It prints `CIRCUITS A B N` for each
pair with circuits, `LAST PICOSECONDS` and `UNFINISHED FLOWS`, a line each.
"""

import json
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import click
import numpy as np
from numpy.typing import NDArray

from moefabric_studies.oracle.mixnet.cases import (
    FloatArray,
    JudgedCase,
    Network,
    demands,
    judged_cases,
    rotated_cases,
)
from moefabric_studies.oracle.processes import SimulatorError
from moefabric_studies.raw_tables import FrozenPart

STORED: Final = Path(__file__).parents[1] / "golden" / "mixnet.json"
_SEEDS: Final = (13, 14, 15)
_PROCESSES: Final = 2
_PS_PER_S: Final = 1e12


class JudgedResult(FrozenPart):
    """Times at which the simulator ended a case.

    Attributes:
        circuits: Servers and number of circuits of each pair that has some.
        ends_s: When the last flow ended, by the seed of the flows' paths.
    """

    case: JudgedCase
    circuits: tuple[tuple[int, int, int], ...]
    ends_s: dict[int, float]

    @property
    def last_s(self) -> float:
        """The median over the seeds."""
        return median(self.ends_s.values())

    def counts(self, servers: int) -> NDArray[np.int64]:
        """Return the circuits [server, server]."""
        counts = np.zeros((servers, servers), dtype=np.int64)
        for a, b, number in self.circuits:
            counts[a, b] = number
        return counts


class JudgedResults(FrozenPart):
    """Results of all cases, and their source."""

    source: dict[str, str]
    results: tuple[JudgedResult, ...]

    @classmethod
    def stored(cls) -> Self:
        """Return the results in this package."""
        return cls.model_validate_json(STORED.read_text())


def run(program: Path, case: JudgedCase, matrix: FloatArray) -> JudgedResult:
    """Run a case once for each seed; without random paths, once.

    Raises:
        SimulatorError: If the program fails, or a flow doesn't end.
    """
    seeds = _SEEDS[:1] if case.network is Network.ONE_SWITCH else _SEEDS
    with TemporaryDirectory() as folder:
        file = Path(folder) / "matrix"
        rows = "\n".join(" ".join(str(int(cell)) for cell in row) for row in matrix)
        file.write_text(f"{len(matrix)}\n{rows}\n")
        outputs = [_output(_command(program, case, file, seed)) for seed in seeds]
    circuits = [line[1:] for line in outputs[0] if line[0] == "CIRCUITS"]
    return JudgedResult(
        case=case,
        circuits=tuple((int(a), int(b), int(number)) for a, b, number in circuits),
        ends_s={seed: _last_s(case, lines) for seed, lines in zip(seeds, outputs, strict=True)},
    )


def _command(program: Path, case: JudgedCase, file: Path, seed: int) -> list[str]:
    network, rate_mbps = case.network.replace(" ", "-"), round(case.rate_bps / 1e6)
    network += "-rotated" if case.rotated else ""
    return [str(program), network, str(file), str(rate_mbps), str(case.optical), str(seed)]


def _output(command: list[str]) -> list[list[str]]:
    program = subprocess.run(command, capture_output=True, text=True, check=False)
    if program.returncode:
        last = program.stderr.strip().splitlines()[-1:] or [f"exit {program.returncode}"]
        raise SimulatorError(f"{' '.join(command)}: {last[0]}")
    return [line.split() for line in program.stdout.splitlines() if line.strip()]


def _last_s(case: JudgedCase, lines: list[list[str]]) -> float:
    values = {line[0]: line[1] for line in lines if line[0] in {"LAST", "UNFINISHED"}}
    if values.get("UNFINISHED") != "0":
        raise SimulatorError(f"{case}: {values.get('UNFINISHED', 'unknown')} flows did not end")
    return int(values["LAST"]) / _PS_PER_S


def run_all(
    program: Path, by_name: Mapping[str, FloatArray], source: Mapping[str, Any]
) -> JudgedResults:
    """Run all cases.

    Args:
        by_name: Bytes [server, server] of each demand by name.
        source: Where the program comes from, and how it was made.
    """
    cases = [*judged_cases(by_name), *rotated_cases(by_name)]
    with ThreadPoolExecutor(_PROCESSES) as pool:
        results = pool.map(lambda case: run(program, case, case.matrix(by_name)), cases)
        return JudgedResults(source=dict(source), results=tuple(results))


@click.command()
@click.argument("program", type=click.Path(path_type=Path, exists=True))
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.argument("folder", type=click.Path(path_type=Path), default=Path("examples"))
@click.option("--json", "file", type=click.Path(path_type=Path), default=STORED)
def main(program: Path, source: Path, folder: Path, file: Path) -> None:
    """Run all cases in PROGRAM, which SOURCE describes in JSON. FOLDER holds the examples."""
    results = run_all(program, demands(folder), json.loads(source.read_text()))
    file.write_text(_text(results))


def _text(results: JudgedResults) -> str:
    """Return JSON with a line for each case."""
    lines = ",\n".join(f"  {result.model_dump_json()}" for result in results.results)
    source = json.dumps(results.source, indent=2, ensure_ascii=False).replace("\n", "\n ")
    return f'{{\n "source": {source},\n "results": [\n{lines}\n ]\n}}\n'


if __name__ == "__main__":
    main()
