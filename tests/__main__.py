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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "out" / "tests"
RERUNS = OUT / "reruns.txt"
BIN = Path(sys.executable).parent
MOST_RERUNS = 3
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
            *("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"),
            *("--ignore", "tests/kernel/timed", "--ignore", "studies/tests/kernel/timed"),
        ),
        lane="kernel",
    ),
    "timed": Tier(_pytest("tests/kernel/timed studies/tests/kernel/timed"), lane="alone"),
    "system": Tier(
        _pytest("tests/system", "-n", "2", "--dist", "loadfile"), lane="alone", nightly=True
    ),
}
GROUPS = {"check": ["ruff", "format", "imports", "types"]}


@dataclass(frozen=True)
class Result:
    """How a tier ended.

    Attributes:
        status: Exit status of its command.
    """

    name: str
    status: int
    seconds: float

    def failed_tests(self) -> list[str]:
        """Return the tests that failed, as pytest names them."""
        noted = _last_failed(self.name)
        return list(json.loads(noted.read_text())) if noted.exists() else []

    @property
    def is_repeatable(self) -> bool:
        return TIERS[self.name].is_pytest and self.status == TESTS_FAILED


def _log(name: str) -> Path:
    return OUT / f"{name}.log"


def _last_failed(name: str) -> Path:
    return OUT / f"{name}.cache" / "v" / "cache" / "lastfailed"


def run_tier(name: str, *, nightly: bool) -> Result:
    """Run a tier with its output in a file, print how it ended, and the output if it failed."""
    tier, started = TIERS[name], time.monotonic()
    arguments = list(tier.command[1:])
    if tier.is_pytest:
        arguments += ["-o", f"cache_dir={OUT / name}.cache", f"--junitxml={OUT / name}.xml"]
        arguments += ["--durations=15", *([] if nightly else ["-m", "not nightly"])]
        _last_failed(name).unlink(missing_ok=True)
    # Without bytecode, each of the many processes would compile all that it imports.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [*tier.prefix, "nice", f"-n{tier.nice}", str(BIN / tier.command[0]), *arguments]
    with _log(name).open("wb") as log:
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    result = Result(name, ended.returncode, time.monotonic() - started)
    output = _log(name).read_text(errors="replace").strip()
    last = output.splitlines()[-1].strip("= ") if output else ""
    outcome = "passed" if result.status == 0 else f"failed with exit status {result.status}"
    shown = f"{name}: {outcome} in {result.seconds:.0f} s: {last}"
    print(shown if result.status == 0 else f"{output}\n{shown}", flush=True)
    return result


def run(names: Iterable[str], *, nightly: bool) -> list[Result]:
    """Run tiers, lanes side by side and the lane `alone` last."""
    lanes: dict[str, list[str]] = {}
    for name in names:
        lanes.setdefault(TIERS[name].lane, []).append(name)
    alone = lanes.pop("alone", [])
    results: list[Result] = []
    for together in (list(lanes.values()), [alone]):
        with ThreadPoolExecutor() as pool:
            waited = [pool.submit(_run_lane, lane, nightly=nightly) for lane in together]
            while wait(waited, timeout=PROGRESS_S).not_done:
                print("  ...", ", ".join(_progress(together)), flush=True)
            results += [result for lane in waited for result in lane.result()]
    return results


def _run_lane(names: list[str], *, nightly: bool) -> list[Result]:
    return [run_tier(name, nightly=nightly) for name in names]


def _progress(lanes: list[list[str]]) -> Iterator[str]:
    """Return how far the tests of each lane are."""
    for name in (name for lane in lanes for name in lane if _log(name).exists()):
        shares = re.findall(r"\[ *(\d+)%\]", _log(name).read_text(errors="replace"))
        if shares and shares[-1] != "100":
            yield f"{name} {shares[-1]} %"


def repeat(failed: list[str]) -> bool:
    """Run failed tests once more, alone; count each in a file and print the file.

    Returns:
        Whether all of them passed.
    """
    print(f"repeating {len(failed)} failed tests:", *failed, sep="\n  ", flush=True)
    repeated = subprocess.run([BIN / "pytest", *failed], cwd=ROOT, check=False)
    counts = Counter(RERUNS.read_text().splitlines() if RERUNS.exists() else [])
    with RERUNS.open("a") as file:
        file.writelines(f"{test}\n" for test in failed)
    for test in failed:
        print(f"repeated: {test}, the {counts[test] + 1}. time ({RERUNS.relative_to(ROOT)})")
    return repeated.returncode == 0


def judge(results: list[Result]) -> bool:
    """Return whether all tiers passed, if need be after few failed tests are repeated."""
    failures = [result for result in results if result.status != 0]
    failed = [test for result in failures for test in result.failed_tests()]
    if not failures:
        return True
    if len(failed) > MOST_RERUNS or not all(result.is_repeatable for result in failures):
        names = ", ".join(result.name for result in failures)
        print(f"failed: {names}, {len(failed)} tests; at most {MOST_RERUNS} are repeated")
        return False
    return repeat(failed)


def main() -> int:
    """Run the tiers of the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    parser.add_argument("--all", action="store_true", help="run nightly tests, too")
    parser.add_argument("tiers", nargs="*", metavar="TIER", choices=[*TIERS, *GROUPS, []])
    options = parser.parse_args()
    default = [name for name, tier in TIERS.items() if options.all or not tier.nightly]
    names = [name for word in options.tiers for name in GROUPS.get(word, [word])] or default
    OUT.mkdir(parents=True, exist_ok=True)
    for name in names:
        _log(name).unlink(missing_ok=True)
    started = time.monotonic()
    passed = judge(run(names, nightly=options.all))
    print(f"{'passed' if passed else 'failed'} in {time.monotonic() - started:.0f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
