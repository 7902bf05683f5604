"""Distribution of the last light of a command, against draws of the emulated switch."""

from dataclasses import replace

import numpy as np
import pytest

from moefabric.config.ocs import load_profile
from moefabric.core.ocs import DeviceProfile, Ocs, RandomTime, SettleTime
from moefabric.core.settling import last_light
from moefabric.emulator.ocs.physics import Activation, Settling

MS = 1_000_000
NORMAL = SettleTime(jitter_ns=3 * MS, distribution="normal", jitter_per="command", bulk_ns=MS)


@pytest.mark.parametrize(
    "link_up",
    [
        pytest.param(RandomTime(2 * MS), id="fixed-link"),
        pytest.param(RandomTime(50 * MS, 9 * MS, "normal"), id="random-link"),
    ],
)
@pytest.mark.parametrize("circuits", [1, 6])
@pytest.mark.parametrize(
    "settle",
    [
        pytest.param(load_profile("polatis-mixnet").settle, id="polatis-mixnet"),
        pytest.param(load_profile("polatis-192x192").settle, id="polatis-192x192"),
        pytest.param(load_profile("palomar-136").settle, id="palomar-136"),
        pytest.param(load_profile("calient-320").settle, id="calient-320"),
        pytest.param(NORMAL, id="normal-per-command"),
        pytest.param(SettleTime(per_connection_ns=MS), id="one-after-the-other"),
    ],
)
def test_last_light_is_that_of_the_emulated_switch(
    settle: SettleTime, circuits: int, link_up: RandomTime
) -> None:
    ocs = Ocs("ocs0", 64, settle.fixed_ns, link_up, profile=DeviceProfile(settle=settle))
    drawn, pairs = Settling(settle, "seed"), [(k, 100 + k) for k in range(2 * circuits)]
    links = Activation(link_up, "seed")
    times = np.array(
        [
            max(lit + links.time_ns() for lit in drawn.times_ns(pairs, conflicts=False))
            for _ in range(4000)
        ]
    )
    found = last_light(ocs, circuits)
    assert found.mean_ns == pytest.approx(times.mean(), rel=0.01)
    assert found.deviation_ns == pytest.approx(times.std(), rel=0.1, abs=1)
    assert np.mean(times < found.least_ns) <= 0.003
    assert np.mean(times > found.most_ns) <= 0.003
    assert found.most_ns <= 1.02 * times.max()


def test_switch_without_random_times_has_one_time() -> None:
    fixed = Ocs("ocs0", 4, 25 * MS, RandomTime(5 * MS))
    light = last_light(fixed, 3)
    assert {light.mean_ns, light.least_ns, light.most_ns} == {30 * MS}
    assert last_light(replace(fixed, settle_ns=0, link_up=RandomTime()), 1).mean_ns == 0
