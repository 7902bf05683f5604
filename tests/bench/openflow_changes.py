"""Times rule changes of one switch through RyuSwitches and prints milliseconds as JSON.

`python openflow_changes.py PORT` listens on 127.0.0.1:PORT for switch s0.
"""

import json
import sys
from time import perf_counter

from moefabric.controller.southbound.openflow.ryu_switches import RyuSwitches

# isort: split
import eventlet

from moefabric.core.eps import Eps
from moefabric.core.rules import Rule, RuleChange
from moefabric.core.topology import Fabric, Region

PATHS = 8
SERVERS = 126
STANDING, ROUNDS, CHANGES = 50, 5, 200


def main() -> None:
    names = tuple(f"s{number}" for number in range(SERVERS))
    fabric = Fabric("bench", (Region("r0", 0, names, None),), 8, 0, PATHS, 100e9, Eps(SERVERS))
    switches = RyuSwitches(fabric, ("s0",), (), deadline_s=10.0)
    switches.listen(("127.0.0.1", int(sys.argv[1])), {"127.0.0.1"})
    with eventlet.Timeout(20):
        while not switches.ready:
            eventlet.sleep(0.01)
    every = [Rule("s0", to, f"s0/e{path}", f"e{path}") for to in names[1:] for path in range(PATHS)]

    def ms(delete: list[Rule], add: list[Rule]) -> float:
        change = RuleChange(frozenset(delete), frozenset(add))
        started = perf_counter()
        switches.apply(change)
        return (perf_counter() - started) * 1e3

    first = ms([], every)  # Ryu serialises each of them once
    many = [(ms(every, []), ms([], every))[1] for _ in range(ROUNDS)]
    ms(every, [])
    standing, one = every[:STANDING], every[STANDING]
    ms([], standing)
    added, deleted = zip(*[(ms([], [one]), ms([one], [])) for _ in range(CHANGES)], strict=True)
    print(
        json.dumps(
            {"rules": len(every), "first": first, "many": many, "added": added, "deleted": deleted}
        )
    )


if __name__ == "__main__":
    main()
