"""Runs the checks and tests of `make test`: `python -m tests [--all] [TIER...]`.

What computes (checks, unit tests) fills the cores while kernel tests wait for packets; tests that
measure time run alone. At most three failed tests run once more, alone, at the end: each is printed
and counted in out/tests/reruns.txt. Durations of all tests are in out/tests/TIER.xml.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
MOST_RERUNS = 3
NIGHTLY = ["--hypothesis-profile=nightly"]
PROGRESS_S = 30
TESTS_FAILED = 1
"""pytest's exit status where tests failed and nothing else went wrong."""


@dataclass(frozen=True)
class Tier:
    """Checks or tests that one command runs.

    Attributes:
        command: Program of the environment, and its arguments.
        lane: Tiers of one lane run in turn, lanes side by side; the lane `alone` runs last.
        nice: Niceness: 0 for tests that meet deadlines, more for what fills the cores.
        nightly: Whether only `make test-all` runs the tier.
        prefix: Command that runs the command.
    """

    command: Sequence[str]
    lane: str
    nice: int = 0
    nightly: bool = False
    prefix: Sequence[str] = ()

    @property
    def is_pytest(self) -> bool:
        return self.command[0] == "pytest"


def _pytest(paths: str, *options: str) -> Sequence[str]:
    return ["pytest", *options, *(path for path in paths.split() if (ROOT / path).exists())]


TIERS = {
    "ruff": Tier(["ruff", "check"], "checks", 10),
    "format": Tier(["ruff", "format", "--check"], "checks", 10),
    "imports": Tier(["lint-imports"], "checks", 10),
    "types": Tier(["mypy", "--strict"], "checks", 10),
    "results": Tier(["python", "-m", "tests.stored_results"], "checks", 10),
    "docs": Tier(
        ["mkdocs", "build", "--quiet", "--strict"],
        lane="checks",
        nice=10,
        nightly=True,
        prefix=["env", "NO_MKDOCS_2_WARNING=1"],
    ),
    "unit": Tier(
        _pytest(
            "tests/unit studies/tests/unit tests/golden tests/fuzz",
            *("-n", "2", "--dist", "worksteal", "--ignore", "tests/unit/agents"),
        ),
        lane="unit",
        nice=10,
    ),
    "kernel": Tier(
        _pytest(
            "tests/unit/agents tests/contract tests/kernel studies/tests/kernel",
            *("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
            *("--ignore", "tests/kernel/timed", "--ignore", "studies/tests/kernel/timed"),
        ),
        lane="kernel",
    ),
    "timed": Tier(
        _pytest(
            "tests/kernel/timed studies/tests/kernel/timed",
            *("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
        ),
        lane="alone",
    ),
    "system": Tier(
        _pytest("tests/system", "-n", "2", "--dist", "loadfile"), lane="alone", nightly=True
    ),
}
GROUPS = {"check": ["ruff", "format", "imports", "types", "results"]}


@dataclass(frozen=True)
class Result:
    """How a tier ended.

    Attributes:
        status: Exit status of its command.
        failed_tests: Tests that failed, as pytest names them.
        is_repeatable: Whether nothing but tests failed.
    """

    name: str
    status: int
    seconds: float
    failed_tests: Sequence[str]
    is_repeatable: bool


@dataclass(frozen=True)
class Session:
    """Tiers that run once, with their output in files.

    Attributes:
        tiers: Tiers by name; the order of a lane.
        out: Folder of logs, durations and the count of reruns.
        nightly: Whether nightly tests run, too.
        root: Folder in which the commands run.
    """

    tiers: Mapping[str, Tier]
    out: Path
    nightly: bool = False
    root: Path = ROOT

    def run(self) -> bool:
        """Run the tiers, then few failed tests once more; return whether all passed."""
        self.out.mkdir(parents=True, exist_ok=True)
        for name in self.tiers:
            self._log(name).unlink(missing_ok=True)
        lanes: dict[str, list[str]] = {}
        for name, tier in self.tiers.items():
            lanes.setdefault(tier.lane, []).append(name)
        alone = lanes.pop("alone", [])
        return self._judge(self._run_lanes(list(lanes.values())) + self._run_lanes([alone]))

    def _run_lanes(self, lanes: list[list[str]]) -> list[Result]:
        with ThreadPoolExecutor(max_workers=max(1, len(lanes))) as pool:
            waited = [pool.submit(self._run_lane, lane) for lane in lanes]
            while wait(waited, timeout=PROGRESS_S).not_done:
                print("  ...", ", ".join(self._progress(lanes)), flush=True)
            return [result for lane in waited for result in lane.result()]

    def _run_lane(self, names: list[str]) -> list[Result]:
        return [self._run_tier(name, self.tiers[name]) for name in names]

    def _run_tier(self, name: str, tier: Tier) -> Result:
        """Run a tier, print how it ended, and its output if it failed."""
        arguments, started = list(tier.command[1:]), time.monotonic()
        cache = self.out / f"{name}.cache"
        noted = cache / "v" / "cache" / "lastfailed"
        if tier.is_pytest:
            arguments += ["-o", f"cache_dir={cache}", f"--junitxml={self.out / name}.xml"]
            arguments += ["--durations=15", *(NIGHTLY if self.nightly else ["-m", "not nightly"])]
            noted.unlink(missing_ok=True)
        # Without bytecode, each of the many processes would compile all that it imports.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        command = [*tier.prefix, "nice", f"-n{tier.nice}", str(BIN / tier.command[0]), *arguments]
        with self._log(name).open("wb") as log:
            status = subprocess.run(
                command,
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        seconds = time.monotonic() - started
        output = self._log(name).read_text(errors="replace").strip()
        last = output.splitlines()[-1].strip("= ") if output else ""
        outcome = "passed" if status == 0 else f"failed with exit status {status}"
        shown = f"{name}: {outcome} in {seconds:.0f} s: {last}"
        print(shown if status == 0 else f"{output}\n{shown}", flush=True)
        failed = list(json.loads(noted.read_text())) if noted.exists() else []
        is_repeatable = tier.is_pytest and status == TESTS_FAILED
        return Result(name, status, seconds, failed, is_repeatable)

    def _progress(self, lanes: list[list[str]]) -> Iterator[str]:
        """Return how far the tests of each lane are."""
        for name in (name for lane in lanes for name in lane if self._log(name).exists()):
            output = self._log(name).read_text(errors="replace")
            tests = re.search(r"(?:collected |\[)(\d+) items", output)
            ended = sum(map(len, re.findall(r"(?m)^(?:\S+\.py )?([.FEsxX]+)(?: |$)", output)))
            if tests and ended < int(tests[1]):
                yield f"{name} {ended} of {tests[1]}"

    def _log(self, name: str) -> Path:
        return self.out / f"{name}.log"

    def _judge(self, results: list[Result]) -> bool:
        """Return whether all tiers passed, if need be after few failed tests are repeated."""
        failures = [result for result in results if result.status != 0]
        failed = [test for result in failures for test in result.failed_tests]
        if not failures:
            return True
        if len(failed) > MOST_RERUNS or not all(result.is_repeatable for result in failures):
            names = ", ".join(result.name for result in failures)
            print(f"failed: {names}; {len(failed)} tests failed, {MOST_RERUNS} may be repeated")
            return False
        return self._repeat(failed)

    def _repeat(self, failed: list[str]) -> bool:
        """Run failed tests once more, alone, and count each in a file and on the screen."""
        print(f"repeating {len(failed)} failed tests", flush=True)
        repeated = subprocess.run([BIN / "pytest", *failed], cwd=self.root, check=False)
        ledger = self.out / "reruns.txt"
        with ledger.open("a") as file:
            file.writelines(f"{test}\n" for test in failed)
        for test, times in Counter(ledger.read_text().splitlines()).items():
            print(f"repeated in {times} runs{' now' * (test in failed)}: {test} ({ledger})")
        return repeated.returncode == 0


def main() -> int:
    """Run the tiers of the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    parser.add_argument("--all", action="store_true", help="run nightly tests, too")
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=", ".join([*TIERS, *GROUPS]))
    options = parser.parse_args()
    default = [name for name, tier in TIERS.items() if options.all or not tier.nightly]
    names = [name for word in options.tiers for name in GROUPS.get(word, [word])] or default
    if unknown := sorted(set(names) - TIERS.keys()):
        parser.error(f"no such tier: {', '.join(unknown)}")
    started = time.monotonic()
    session = Session({name: TIERS[name] for name in names}, ROOT / "out/tests", options.all)
    passed = session.run()
    print(f"{'passed' if passed else 'failed'} in {time.monotonic() - started:.0f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
