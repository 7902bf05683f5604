"""Random faults for a long time: `python -m tests.chaos --help`."""

import argparse
import random
import sys
import time

from tests.chaos.rounds import Chaos
from tests.kernel.fabric_lab import isolated_machine


def main() -> int:
    """Run rounds until there were enough faults, or the time is over."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    end_s, rounds, faults = time.monotonic() + options.seconds, 0, 0
    print(f"seed {options.seed}", flush=True)
    with isolated_machine(int(options.seconds) + 600) as machine:
        chaos = Chaos(machine, random.Random(options.seed))
        while faults < options.faults and time.monotonic() < end_s:
            faults += chaos.round()
            rounds += 1
            print(f"{rounds} fabrics, {faults} faults: {dict(chaos.counts)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
