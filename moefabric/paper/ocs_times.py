"""Times of optical circuit switches, from the profiles of the emulated ones (paper appendix C)."""

from functools import cache
from statistics import mean, quantiles
from typing import Final

from moefabric.config.ocs_profile import load_profile
from moefabric.core.units import NS_PER_S, duration_ns
from moefabric.emulator.ocs.physics import Settling

_COMMANDS: Final = 4000
"""Commands of which the settle times are drawn."""


def ocs_ports(profile: str) -> float:
    """Return the number of ports of a profile's switch; 0 if it has as many as needed."""
    return float(load_profile(profile).ports or 0)


def settle_ms(profile: str, pairs: int, quantile: float | None) -> float:
    """Return the milliseconds that a command takes until all of its pairs have light.

    They are drawn from the settle times of the emulated device. A pair is two cross-connects.

    Args:
        profile: name of a shipped profile.
        pairs: pairs of ports that the command connects.
        quantile: quantile of the commands' times; None is their mean.
    """
    times = _command_ms(profile, pairs)
    return mean(times) if quantile is None else quantiles(times, n=1000)[round(1000 * quantile) - 1]


@cache
def _command_ms(profile: str, pairs: int) -> tuple[float, ...]:
    settling = Settling(load_profile(profile).settle, f"{pairs} pairs")
    added = [(port, port) for port in range(2 * pairs)]
    return tuple(max(settling.times_ns(added, conflicts=False)) / 1e6 for _ in range(_COMMANDS))


def link_up_share(profile: str, link_up: str) -> float:
    """Return the part of a control cycle in which transceivers and NICs become ready, in per cent.

    Args:
        profile: name of a shipped profile.
        link_up: time from light to a usable link.
    """
    link_up_ms = duration_ns(link_up) / NS_PER_S * 1e3
    return 100 * link_up_ms / (link_up_ms + settle_ms(profile, 1, None))
