"""Jobs, results and pages of the frontier study."""

import re
import shutil
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import inf
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from moefabric_studies.paper.evaluation import RATES, Evaluation, load_evaluation
from moefabric_studies.paper.frontier.jobs import (
    LAYERS,
    REGION_SIZES,
    region_jobs,
    training_trace_demands,
)
from moefabric_studies.paper.frontier.networks import (
    EPS,
    EVEN_SPILL,
    JOINT,
    MIXNET,
    MULTIHOP,
    SPILL,
    TAPERED,
)
from moefabric_studies.paper.frontier.page import page_text
from moefabric_studies.paper.frontier.pictures import pictures
from moefabric_studies.paper.frontier.results import FrontierResults, Limit, Move, Point, efficient
from moefabric_studies.paper.loader import load_jobs
from moefabric_studies.paper.network import NETWORKS, nic_bytes_s
from moefabric_studies.raw_tables import read_table

from moefabric.config.model import preset
from moefabric.core.errors import SpecError
from moefabric.ui.cli.main import main
from tests.support.paths import EXAMPLES, REPOSITORY

STORED = REPOSITORY / "docs/results"


@cache
def evaluation() -> Evaluation:
    return load_evaluation(EXAMPLES / "paper")


def test_jobs_fill_regions_of_each_size() -> None:
    jobs = region_jobs(EXAMPLES / "paper", evaluation().jobs)
    assert [(job.model, job.servers) for job in jobs] == [
        (model, servers)
        for model in ("mixtral-8x22b", "mixtral-8x7b", "llama-moe", "qwen-moe", "deepseek-r1")
        for servers in REGION_SIZES
    ]
    for job in jobs:
        assert len(job.layers) == LAYERS
        for layer, demand in zip(job.layers, job.demands, strict=True):
            assert layer.servers == job.servers == len(demand)
            assert layer.model.experts >= layer.training.ep
            assert layer.model.experts in (preset(job.model).experts, 32, layer.training.ep)
        first, second = job.demands[:2]
        assert not np.allclose(first, second)


def test_paper_region_has_the_published_demand_but_for_noise() -> None:
    (job, *_) = region_jobs(EXAMPLES / "paper", evaluation().jobs, sizes=(8,))
    paper = evaluation().jobs["mixtral-8x22b"]
    assert replace(job.layers[0], gating=paper.gating) == paper
    assert job.demands[0] == pytest.approx(paper.dispatch_bytes, rel=0.5)


@pytest.mark.parametrize(
    ("moved", "fixed", "waits", "limit"),
    [
        (1.5, 1.5, True, 0.0),
        (1.5, 1.2, False, 0.0),
        (1.5, 2.0, True, 2.0),  # four times a half
        (1.0, 1.5, False, 8 * 2.0 / 7.0),  # 7 of 8 are lost until circuits are lit
        (1.0, 3.0, False, inf),  # more is saved than the EPS alone takes
    ],
)
def test_moving_pays_up_to_the_time_that_it_saves(
    moved: float, fixed: float, waits: bool, limit: float
) -> None:
    move = Move(optical=7, share=0.5, policy="any", waits=waits, moved=moved, fixed=fixed, eps=8.0)
    assert move.break_even == pytest.approx(limit)


def test_generated_gating_fills_regions_of_each_size(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "paper", tmp_path / "paper")
    (tmp_path / "data").symlink_to(EXAMPLES / "data")
    file = tmp_path / "paper/jobs.yaml"
    document = yaml.safe_load(file.read_text())
    document["jobs"] = [job for job in document["jobs"] if job["name"] == "qwen-moe"]
    document["jobs"][0]["gating"] = {"generator": "toy-training-aux"}
    file.write_text(yaml.safe_dump(document))
    jobs = load_jobs(file)
    drawn = jobs["qwen-moe"]
    assert (drawn.gating.sum(axis=1) == drawn.training.rank_tokens * drawn.model.top_k).all()
    first, second, third = region_jobs(file.parent, jobs)
    for job in (first, second, third):
        assert all(layer.gating.shape[1] == layer.model.experts for layer in job.layers)
    assert (first.layers[0].gating != first.layers[1].gating).any()
    document["jobs"][0]["gating"] = {"generator": "toy", "file": "x.npz"}
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(SpecError, match="gating: file or generator is needed, one of them"):
        load_jobs(file)


@pytest.mark.parametrize("servers", [4, 8, 16])
def test_demands_of_the_trace_keep_its_tokens(servers: int) -> None:
    file = EXAMPLES / "data/training-1200-steps.npz"
    demands = training_trace_demands(file, servers, step=600)
    assert len(demands) == 2 * 4
    with np.load(file) as archive:
        recorded = archive["counts"][0, 0].astype(float)
    rows = recorded.reshape(4, 2, 4, 4).sum(axis=(1, 3))
    if servers == 4:
        assert demands[0] == pytest.approx(rows * (1 - np.eye(4)))
    assert all(demand.shape == (servers, servers) for demand in demands)
    assert all(not np.diag(demand).any() for demand in demands)


def test_points_have_the_times_of_the_papers_networks(study: FrontierResults) -> None:
    """With the gating of one layer, a point's iteration is that of `moefabric paper`."""
    jobs = region_jobs(EXAMPLES / "paper", evaluation().jobs, sizes=(8,))
    for name, policy, optical in (("fat-tree", EPS, 0), ("mixnet", MIXNET, 6)):
        for rate in RATES:
            (point,) = study.select(
                model="mixtral-8x22b", rate_bps=rate, policy=policy.name, optical=optical
            )
            dispatches = [
                NETWORKS[name].all_to_all(layer, rate).dispatch_s for layer in jobs[0].layers
            ]
            assert point.all_to_all_s == pytest.approx(float(np.mean(dispatches)))


def test_points_compare_with_the_eps(study: FrontierResults) -> None:
    own = study.select(policy=EPS.name)
    assert {(one.all_to_all, one.iteration, one.efficiency) for one in own} == {(1.0, 1.0, 1.0)}
    for point in study.points:
        assert point.optical + point.electrical == 8
        assert point.all_to_all >= 1 - 1e-9
        if point.policy != SPILL.name:  # whose even circuits may be better than those that move
            assert point.settling_iteration_s >= point.iteration_s * (1 - 1e-9)
        base = study.select(model=point.model, rate_bps=point.rate_bps, policy=EPS.name)[0]
        ratio = base.usd * base.iteration_s / (point.usd * point.iteration_s)
        assert point.efficiency == pytest.approx(ratio)


def test_tapered_eps_loses_to_the_eps_by_transfers_between_regions_alone(
    study: FrontierResults,
) -> None:
    tapered = study.select(policy=TAPERED.name)
    assert len(tapered) == 28 * len(study.models) > 0
    for point in tapered:
        base = study.select(model=point.model, rate_bps=point.rate_bps, policy=EPS.name)[0]
        assert point.all_to_all_s == pytest.approx(base.all_to_all_s)
        added_s = point.transfers_s - base.transfers_s
        assert point.iteration_s - base.iteration_s == pytest.approx(added_s)
        assert point.transfers_s >= base.transfers_s * 8 / point.electrical * (1 - 1e-9)


def test_no_network_surpasses_one_on_the_frontier(study: FrontierResults) -> None:
    assert study.models
    for model in study.models:
        points = study.select(model=model)
        best = [point for point in points if point.is_efficient]
        assert best
        for one in points:
            latest_s = one.iteration_s * (1 + 1e-6)
            assert any(p.usd <= one.usd and p.iteration_s <= latest_s for p in best)
        for one, other in pairwise(sorted(best, key=lambda p: p.usd)):
            assert one.usd < other.usd
            assert one.iteration_s > other.iteration_s


def test_efficient_points_are_cheaper_or_faster_than_all_others(study: FrontierResults) -> None:
    base = study.points[0]
    cases = [(1, 5), (2, 4), (2, 6), (3, 4), (4, 1)]
    points = [base.model_copy(update={"usd": u, "iteration_s": s}) for u, s in cases]
    assert [(p.usd, p.iteration_s) for p in efficient(points)] == [(1, 5), (2, 4), (4, 1)]


def test_latency_leads_from_the_best_split_to_the_null_model() -> None:
    limit = Limit(
        model="", servers=16, by_nics={"0": 4.0}, unlimited=1.0, relays=2, dispatch_nic_bytes=1e6
    )
    rate = 100e9
    base_s = 1e6 / nic_bytes_s(rate)
    assert limit.with_latency(0.0, rate) == 1.0
    assert limit.with_latency(0.1 * base_s, rate) == pytest.approx(1.2)
    assert limit.with_latency(9.0 * base_s, rate) == 4.0


def test_a_permutation_is_where_moved_circuits_win(study: FrontierResults) -> None:
    (whole,) = [mix for mix in study.mixes if mix.kind == "exchange" and mix.share == 1.0]
    assert whole.all_to_all[JOINT.name] == pytest.approx(1.0)
    assert whole.all_to_all[MULTIHOP.name] == pytest.approx(1.6)


def test_results_survive_json(study: FrontierResults, tmp_path: Path) -> None:
    file = tmp_path / "frontier.json"
    file.write_text(study.model_dump_json())
    assert FrontierResults.model_validate_json(file.read_text()) == study


def test_every_picture_is_well_formed_and_has_the_null_model(study: FrontierResults) -> None:
    drawn = pictures(study)
    assert set(drawn) >= {"frontier-8.svg", "frontier-capacity.svg", "frontier-latency.svg"}
    for name, text in drawn.items():
        root = ET.fromstring(text)
        assert root.tag.endswith("svg"), name
        assert "null model" in text, name
        assert "nan" not in text, name


def test_command_draws_the_page_of_earlier_results(study: FrontierResults, tmp_path: Path) -> None:
    file, page = tmp_path / "frontier.json", tmp_path / "frontier.md"
    file.write_text(study.model_dump_json())
    outcome = CliRunner().invoke(
        main, ["frontier", "--results", str(file), "--page", str(page), "--stored", str(STORED)]
    )
    assert outcome.exit_code == 0, outcome.output
    assert "performance per dollar, 8 servers, 7+1, 100Gb/s" in outcome.output
    text = page.read_text()
    assert text == page_text(study, page, STORED)
    for name in pictures(study):
        assert (tmp_path / name).exists()
        assert f"]({name})" in text


def test_targets_that_the_null_model_reaches_say_nothing(study: FrontierResults) -> None:
    text = page_text(study, REPOSITORY / "docs/frontier.md", STORED)
    subject = r"performance per dollar, 8 servers, 7\+1, 400Gb/s"
    [(own, null, verdict)] = re.findall(
        rf"\| {subject} \| at least 3 \| (\S+)[^|]* \| (\S+)[^|]* \| ([^|]*) \|", text
    )
    assert float(own) >= float(null) >= 3
    assert verdict == "reached, null fits too"


def test_null_model_is_the_split_without_forwarding(study: FrontierResults) -> None:
    (limit, *_) = study.limits
    points: list[Point] = study.select(
        model=limit.model, policy=EVEN_SPILL.name, optical=7, rate_bps=RATES[0]
    )
    assert limit.by_nics["8"] == pytest.approx(limit.unlimited)
    assert points[0].all_to_all >= 1


@pytest.mark.parametrize(
    "model", ["mixtral-8x22b", "mixtral-8x7b", "llama-moe", "qwen-moe", "deepseek-r1"]
)
def test_experiments_with_packets_have_the_jobs_of_the_study(model: str) -> None:
    document = yaml.safe_load((EXAMPLES / f"forwarding-{model}.yaml").read_text())
    jobs = region_jobs(EXAMPLES / "paper", evaluation().jobs, sizes=(8,))
    (job,) = [job for job in jobs if job.model == model]
    training = job.layers[0].training
    assert document["model"]["name"] == model
    assert document["model"].get("experts", preset(model).experts) == job.layers[0].model.experts
    for key in ("ep", "tp", "sequence", "micro_batch"):
        assert document["training"][key] == getattr(training, key)
    assert document["wiring"]["regions"][0]["servers"] == job.servers
    assert [(f.get("patch_panel_nics", 0), f["electrical"]) for f in document["fabrics"]] == [
        (0, 8),
        (7, 1),
        (7, 1),
    ]


def test_page_has_the_stored_results_of_runs_and_is_the_same_without_a_new_run(
    study: FrontierResults, tmp_path: Path
) -> None:
    page = REPOSITORY / "docs/frontier.md"
    assert "Not measured yet." in page_text(study, page, tmp_path)
    _, _, drawn = page_text(study, page, STORED).partition("## With packets")
    _, _, shown = page.read_text().partition("## With packets")
    assert drawn.partition("## What the model")[0] == shown.partition("## What the model")[0]
    assert "| forwarding-mixtral-8x22b | `multihop` | 7 + 1 |" in drawn


@pytest.mark.nightly
def test_page_and_stored_table_are_those_of_the_whole_study(tmp_path: Path) -> None:
    page, file, table = REPOSITORY / "docs/frontier.md", tmp_path / "f.json", tmp_path / "f.csv"
    words = ["frontier", str(EXAMPLES / "paper"), "--json", str(file), "--store", str(table)]
    outcome = CliRunner().invoke(main, words)
    assert outcome.exit_code == 0, outcome.output
    source, rows = read_table(STORED / "frontier.csv")
    assert rows == read_table(table)[1]
    whole = FrontierResults.model_validate_json(file.read_text())
    stored = whole.model_copy(update={"provenance": source})
    assert page.read_text() == page_text(stored, page, STORED)


def test_settling_costs_each_forward_dispatch_of_mixnet_its_whole_time(
    study: FrontierResults,
) -> None:
    jobs = region_jobs(EXAMPLES / "paper", evaluation().jobs, sizes=(8,))
    studied = [job for job in jobs if job.model in study.models]
    assert studied
    for job in studied:
        points = study.select(model=job.model, policy=MIXNET.name)
        added_s = [point.settling_iteration_s - point.iteration_s for point in points]
        least_s = job.layers[0].layer_passes * 0.025
        assert added_s == pytest.approx([least_s] * 28, rel=0.2)


def test_settling_costs_joint_at_most_what_even_circuits_take(study: FrontierResults) -> None:
    costs = 0
    for point in study.select(policy=JOINT.name):
        (even,) = study.select(
            model=point.model,
            policy=EVEN_SPILL.name,
            optical=point.optical,
            rate_bps=point.rate_bps,
        )
        assert point.settling_iteration_s <= even.iteration_s * (1 + 1e-9)
        costs += point.settling_iteration_s > point.iteration_s * (1 + 1e-6)
    assert costs
