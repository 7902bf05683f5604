"""The model's own answers to a scenario: fluid bound, max-min flows, and two null models."""

from collections import defaultdict
from math import inf

from moefabric import Step, Stream, simulate
from moefabric.api.networks import Link, route_latency_s
from moefabric_studies.oracle.scenario import RoutedFlow, Scenario

_ETHERNET = 14


def max_min_ends_s(
    scenario: Scenario, *, store_and_forward: bool = True, paced: bool = False
) -> list[float]:
    """Return when each flow ends if links are shared max-min fairly, in seconds from the start.

    Args:
        store_and_forward: Whether switches store a frame before they send it on. Every cable delays
            the last byte by its propagation in any case.
        paced: Whether no flow exceeds its own rate.
    """
    delay = {link: cable.delay_s for link, cable in scenario.links()}
    frame_bytes = scenario.mtu + _ETHERNET if store_and_forward else 0
    rates = link_rates_bps(scenario)

    def stream(flow: RoutedFlow) -> Stream:
        hops = len(flow.route)
        slowest = min(rates[link] for link in flow.route)
        mean_delay_s = sum(delay[link] for link in flow.route) / hops
        lag_s = route_latency_s(hops, mean_delay_s, frame_bytes, slowest)
        pace_bps = flow.rate_bps if paced and flow.rate_bps is not None else inf
        return Stream(flow.bytes, flow.route, pace_bps, flow.start_s, lag_s)

    steps = [
        Step(step.after, step.seconds, tuple(map(stream, step.flows))) for step in scenario.steps
    ]
    return [end for times in simulate(steps, goodput_bps(scenario)) for end in times.stream_ends_s]


def fluid_bound_s(scenario: Scenario) -> float:
    """Return the time of the fullest link's bytes: no transport ends a single step sooner."""
    load: defaultdict[Link, float] = defaultdict(float)
    for flow in scenario.flows:
        for link in flow.route:
            load[link] += flow.bytes
    goodput = goodput_bps(scenario)
    return max((8 * sent / goodput[link] for link, sent in load.items()), default=0.0)


def alone_ends_s(scenario: Scenario) -> list[float]:
    """Return when each flow would end if it were alone on its links: a null model."""
    goodput = goodput_bps(scenario)
    return [
        flow.start_s + 8 * flow.bytes / min(goodput[link] for link in flow.route)
        for flow in scenario.flows
    ]


def goodput_bps(scenario: Scenario) -> dict[Link, float]:
    """Return the payload rate of each direction of each cable."""
    share = scenario.goodput_share
    return {link: rate_bps * share for link, rate_bps in link_rates_bps(scenario).items()}


def link_rates_bps(scenario: Scenario) -> dict[Link, float]:
    """Return the rate of each direction of each cable."""
    return {link: cable.rate_bps for link, cable in scenario.links()}
