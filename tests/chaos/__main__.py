"""Random faults for a long time: `python -m tests.chaos --help`."""

import argparse
import os
import random
import sys
import time
from functools import partial

from tests.chaos.faults import KINDS, PLANTED
from tests.chaos.rounds import Chaos
from tests.chaos.traces import alone_argv
from tests.kernel.fabric_lab import isolated_machine
from tests.support.namespaces import must


def main() -> int:
    """Run rounds until there were enough faults; return 1 if the time is over before."""
    options = _options()
    if not options.alone:
        argv = alone_argv("-m", "tests.chaos", *sys.argv[1:], "--alone")
        os.execvp(argv[0], argv)
    end_s, rounds, faults = time.monotonic() + options.seconds, 0, 0
    print(f"seed {options.seed}", flush=True)
    with isolated_machine(int(options.seconds) + 600) as machine:
        # Controllers have addresses of the machine, which it reaches by its loopback.
        machine.run(partial(must, "ip", "link", "set", "lo", "up"))
        chaos = Chaos(machine, random.Random(options.seed), options.kind or tuple(KINDS))
        while faults < options.faults and time.monotonic() < end_s:
            faults += chaos.round()
            rounds += 1
            print(f"{rounds} fabrics, {faults} faults: {dict(chaos.counts)}", flush=True)
    if faults < options.faults:
        print(f"{faults} of {options.faults} faults in {options.seconds:.0f} s", file=sys.stderr)
    return int(faults < options.faults)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=7200.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument(
        "--kind",
        action="append",
        choices=[*KINDS, *PLANTED],
        metavar="KIND",
        help=f"only this one; again for more: {', '.join(KINDS)}",
    )
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
