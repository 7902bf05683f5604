"""Runs scenarios in SimGrid: a JSON array on standard input, a line of JSON for each on output.

The program runs in the Python of a machine that has SimGrid (`python3-simgrid` of Debian) and
imports nothing of this project. SimGrid shares links max-min fairly here: the correction factors
of its TCP model are off, and links carry the payload part of their rate.
"""

import json
import sys
import time
from collections.abc import Mapping
from multiprocessing import get_context
from typing import Any, Final

from simgrid import Actor, Engine, LinkInRoute, Mailbox, NetZone, this_actor

_PURE_SHARING: Final = (
    "--cfg=network/model:CM02",
    "--cfg=network/crosstraffic:0",
    "--cfg=network/TCP-gamma:0",
    "--log=root.thres:error",
)


def main() -> None:
    """Run the scenarios, each in a process of its own: SimGrid has one engine per process."""
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for answer in pool.imap(_answer, json.load(sys.stdin)):
            print(json.dumps(answer), flush=True)


def _answer(scenario: Mapping[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    ends = _Simulation(scenario).run()
    return {"flows": [{"end_s": end} for end in ends], "wall_s": time.monotonic() - started}


class _Simulation:
    """Simulation with an actor for each step, and a sender and a receiver for each flow.

    Their hosts are named after the NICs.
    """

    def __init__(self, scenario: Mapping[str, Any]) -> None:
        self.engine = Engine([sys.argv[0], *_PURE_SHARING])
        self.steps = scenario["steps"]
        flows = [flow for step in self.steps for flow in step["flows"]]
        self.ends: list[float | None] = [None] * len(flows)
        self.actors: list[Any] = []
        self._wire(scenario, flows)

    def _wire(self, scenario: Mapping[str, Any], flows: list[Mapping[str, Any]]) -> None:
        zone = NetZone.create_full_zone("fabric")
        links = {}
        for cable in scenario["cables"]:
            bytes_per_s = cable["rate_bps"] * scenario["goodput_share"] / 8
            for start, end in (cable["ends"], cable["ends"][::-1]):
                link = zone.create_link(f"{start}>{end}", bytes_per_s)
                links[start, end] = link.set_latency(cable["delay_s"]).seal()
        routes = {
            (flow["route"][0][0], flow["route"][-1][1]): tuple(map(tuple, flow["route"]))
            for flow in flows
        }
        names = dict.fromkeys(name for pair in routes for name in pair)
        self.hosts = {name: zone.create_host(name, 1e9).seal() for name in ["clock", *names]}
        for (source, target), route in routes.items():
            hops = [LinkInRoute(links[hop]) for hop in route]
            ends = self.hosts[source].netpoint, self.hosts[target].netpoint
            zone.add_route(*ends, None, None, hops, False)
        zone.seal()

    def run(self) -> list[float | None]:
        """Return when each flow ends, in seconds from the start."""
        first = 0
        for number, step in enumerate(self.steps):
            actor = Actor.create(f"step{number}", self.hosts["clock"], self._step, step, first)
            self.actors.append(actor)
            first += len(step["flows"])
        self.engine.run()
        return self.ends

    def _step(self, step: Mapping[str, Any], first: int) -> None:
        for before in step["after"]:
            self.actors[before].join()
        started = Engine.clock
        parts = []
        for number, flow in enumerate(step["flows"], start=first):
            source, target = flow["route"][0][0], flow["route"][-1][1]
            box = Mailbox.by_name(f"flow{number}")
            parts += [
                Actor.create(f"out{number}", self.hosts[source], self._send, box, flow),
                Actor.create(f"in{number}", self.hosts[target], self._receive, box, number),
            ]
        if step["seconds"]:
            this_actor.sleep_until(started + step["seconds"])
        for part in parts:
            part.join()

    @staticmethod
    def _send(box: Any, flow: Mapping[str, Any]) -> None:
        if flow["start_s"]:
            this_actor.sleep_for(flow["start_s"])
        box.put(b"", max(1, round(flow["bytes"])))

    def _receive(self, box: Any, number: int) -> None:
        box.get()
        self.ends[number] = Engine.clock


if __name__ == "__main__":
    main()
