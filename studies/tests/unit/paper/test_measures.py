"""Quantities of the tables: testbed, look-ahead, OCS times and hashed flows."""

import pytest
from moefabric_studies.paper.job import PaperJob
from moefabric_studies.paper.loader import load_jobs
from moefabric_studies.paper.other_hardware import (
    link_up_s,
    link_up_share,
    mixnet_to_eps,
    nvl72_to_mixnet,
    ocs_ports,
    settle_ms,
)
from moefabric_studies.paper.path_collisions import hashed_to_spread

from moefabric.api.plugins import load_experiment
from moefabric.api.testbeds import RandomTime
from tests.support.paths import EXAMPLES

JOBS = load_jobs(EXAMPLES / "paper/jobs.yaml")
TESTBED = load_jobs(EXAMPLES / "paper/testbed.yaml")


def test_testbed_trains_the_layers_of_the_paper() -> None:
    assert {name: job.model.layers for name, job in TESTBED.items()} == {
        "mixtral-8x7b": 7,
        "llama-moe": 16,
        "qwen-moe": 12,
    }


@pytest.mark.parametrize("job", TESTBED.values(), ids=TESTBED)
def test_three_circuits_are_slower_than_four_nics(job: PaperJob) -> None:
    assert 1.0 < mixnet_to_eps(job) < 4.0
    fast = job.with_utilisation(1e-6)
    assert mixnet_to_eps(fast) == pytest.approx(1.0, abs=1e-3)


def test_optical_io_gains_nothing_if_compute_takes_all_time() -> None:
    job = JOBS["deepseek-r1"]
    assert nvl72_to_mixnet(job) > 1.0
    assert nvl72_to_mixnet(job.with_utilisation(1e-6)) == pytest.approx(1.0, abs=1e-3)
    assert nvl72_to_mixnet(job.with_utilisation(1e9)) == pytest.approx(3.6 / 0.8, rel=1e-3)


def test_gain_of_optical_io_with_other_gpus_is_that_of_the_page() -> None:
    job, page = JOBS["deepseek-r1"], (EXAMPLES.parent / "docs/paper.md").read_text()
    slower, h100 = (
        f"{nvl72_to_mixnet(job.with_utilisation(0.4 * flops / 2.5e15)):.2f}"
        for flops in (2.25e15, 0.99e15)
    )
    text = f"with 2.25 Pflop/s (HGX B200) it is {slower}, with 0.99 (H100) {h100} and outside"
    assert text in page


def test_profile_of_the_testbed_has_the_times_of_the_figure() -> None:
    """The profile was fitted to one pair and to 16 pairs; the time of 4 pairs follows."""
    assert settle_ms("polatis-mixnet", 1, None) == pytest.approx(41.44, abs=0.3)
    assert settle_ms("polatis-mixnet", 4, None) == pytest.approx(42.44, abs=0.3)
    assert settle_ms("polatis-mixnet", 16, None) == pytest.approx(46.75, abs=0.3)
    assert settle_ms("polatis-mixnet", 1, 0.99) == pytest.approx(60, abs=2)
    assert ocs_ports("polatis-576") == 576


def test_nics_of_the_example_take_as_long_as_those_of_the_figure() -> None:
    ocs = load_experiment(EXAMPLES / "nic-activation.yaml").wiring.regions[0].ocs
    assert ocs is not None
    assert ocs.link_up == RandomTime(5_670_000_000, 284_000_000, "normal")
    assert link_up_s("5.67s", "284ms", None) == pytest.approx(5.67, abs=0.02)
    assert link_up_s("5.67s", "284ms", 0.99) == pytest.approx(6.33, abs=0.03)


def test_nic_activation_dominates_the_control_cycle() -> None:
    assert link_up_share("fast-10us", "10us") == pytest.approx(50.0)
    assert link_up_share("polatis-mixnet", "5.67s") > 99


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_hashed_flows_are_slower_than_spread_ones(job: PaperJob) -> None:
    assert 1.0 < hashed_to_spread(job) < 3.0
    assert hashed_to_spread(job) == hashed_to_spread(job)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("prototype", "mixtral-8x7b"),
        ("prototype-llama-moe", "llama-moe"),
        ("prototype-qwen-moe", "qwen-moe"),
    ],
)
def test_prototypes_with_packets_are_the_jobs_of_the_testbed(file: str, name: str) -> None:
    """So that their packets say something about the rows."""
    spec, job = load_experiment(EXAMPLES / f"{file}.yaml"), TESTBED[name]
    sizes = spec.training.ep, spec.training.tp, spec.training.sequence, spec.training.micro_batch
    own = job.training
    assert sizes == (own.ep, own.tp, own.sequence, own.micro_batch)
    assert (spec.training.pp, spec.training.dp) == (job.pp, job.dp)
    assert spec.model.build().layers == job.model.layers
    regions = spec.wiring.expanded_regions
    assert [region.servers for region in regions] == [job.servers] * job.dp
