"""Long form of the fuzz tests: Atheris searches inputs by coverage and keeps those that find code.

    python -m tests.fuzz [--inputs 1000000] [--keep] [TARGET...]

Each target runs in a process of its own. An input that finds a defect ends it and is written to
`out/fuzz/TARGET/`; copy it to the corpus once the defect is mended. `--keep` merges new inputs that
reach further code into the corpus. A target without a defect gets its line in `ledger.csv`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import atheris

from tests.fuzz.ledger import FuzzRun, note
from tests.support.fuzzing import CORPUS, LONGEST_INPUT

_OUTPUT_LETTERS = 1 << 14
_PATIENCE = 10
"""How much longer an input may take than in the short form: hours of fuzzing share a machine."""


def main() -> int:
    """Fuzz the targets one after the other; return 1 if one of them has a defect."""
    options = _options()
    if options.one:
        _fuzz_one(options.one, options.inputs, keep=options.keep)
    from tests.fuzz.targets import targets

    known = [target.name for target in targets()]
    if unknown := set(options.targets) - set(known):
        print(f"{', '.join(sorted(unknown))}: there are {', '.join(known)}", file=sys.stderr)
        return 2
    failed = [name for name in options.targets or known if not _runs_clean(name, options)]
    if failed:
        print(f"defects: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="inputs per target")
    parser.add_argument("--keep", action="store_true", help="merge new inputs into the corpus")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def _runs_clean(name: str, options: argparse.Namespace) -> bool:
    argv = [sys.executable, "-m", "tests.fuzz", "--one", name, "--inputs", str(options.inputs)]
    print(f"{name}: {options.inputs} inputs", flush=True)
    if options.keep:
        return not subprocess.run([*argv, "--keep"], check=False).returncode
    output = ""
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, errors="replace") as fuzzing:
        assert fuzzing.stderr is not None
        for line in fuzzing.stderr:
            output = (output + line)[-_OUTPUT_LETTERS:]
            if not line.startswith("#"):  # the fuzzer's progress
                sys.stderr.write(line)
    if fuzzing.returncode:
        return False
    run = FuzzRun.of_output(name, output)
    note(run)
    print(f"{name}: {run.inputs} inputs reach {run.coverage} edges", flush=True)
    return True


def _fuzz_one(name: str, inputs: int, *, keep: bool) -> None:
    """Fuzz one target and end the process."""
    with atheris.instrument_imports(include=["moefabric"]):
        from tests.fuzz.targets import targets

        target = next(target for target in targets() if target.name == name)
    found = Path("out/fuzz") / name
    (found / "new").mkdir(parents=True, exist_ok=True)
    folders = [CORPUS / name, found / "new"] if keep else [found / "new", CORPUS / name]
    slow_s = _PATIENCE * target.limit_s
    limits = [f"-runs={inputs}", f"-max_len={LONGEST_INPUT}", f"-timeout={slow_s:.0f}"]
    mode = ["-merge=1"] if keep else [*limits, "-print_final_stats=1"]
    argv = [sys.argv[0], *mode, f"-artifact_prefix={found}/", *map(str, folders)]
    atheris.Setup(argv, target.read)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
