"""The public Python interface: every name exists, is documented and is imported lazily."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import moefabric
from moefabric import CircuitSet, DemandMatrix, Eps, Fabric, Ocs, Region, plan, policy_named
from moefabric.api import plugins, results, workloads
from tests.support.paths import REPOSITORY

API = (
    "charts", "links", "networks", "plugins", "predictions", "results", "testbeds", "workloads",
)  # fmt: skip
"""Modules of names for the authors of other packages."""


@pytest.mark.parametrize("name", moefabric.__all__)
def test_public_name_exists_and_has_a_docstring_of_its_own(name: str) -> None:
    value = getattr(moefabric, name)
    assert inspect.getdoc(value)
    assert not (value.__doc__ or "").startswith(f"{name}("), "the docstring is generated"


def test_public_names_are_sorted_and_complete() -> None:
    assert len(moefabric.__all__) == len(set(moefabric.__all__))
    lazy = [name for names in vars(moefabric)["_MODULES"].values() for name in names.split()]
    assert sorted(lazy) == sorted(moefabric.__all__)


@pytest.mark.parametrize(
    ("load", "file"),
    [
        (moefabric.read_trace, "tests/data/traces/chakra/mini_moe_ep4_dp2"),
        (moefabric.read_gating, "examples/data/gating-8x8.json"),
        (moefabric.load_model, "examples/data/olmoe-1b-7b.json"),
        (moefabric.load_fabric, "examples/fabric.yaml"),
        (moefabric.Experiment.load, "examples/prototype.yaml"),
        (moefabric.Result.load, "docs/results/pipeline.json"),
        (plugins.load_experiment, "examples/prototype.yaml"),
        (plugins.read_text, "examples/fabric.yaml"),
        (plugins.read_yaml, "examples/fabric.yaml"),
        (results.read_run, "docs/results/pipeline.json"),
        (workloads.load_gating, "examples/data/gating-8x8.json"),
        (workloads.load_routes, "examples/data/moe-64-experts-routes.npz"),
    ],
)
def test_files_are_named_by_text_or_path(load: Callable[[str | Path], object], file: str) -> None:
    path = REPOSITORY / file
    assert type(load(str(path))) is type(load(path))


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'moefabric' has no attribute 'nothing'"):
        getattr(moefabric, "nothing")  # noqa: B009 - mypy knows that it doesn't exist


def test_import_loads_no_other_module() -> None:
    loaded = "[name for name in sys.modules if name.startswith('moefabric.') or name == 'numpy']"
    script = f"import sys, moefabric; print({loaded})"
    completed = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert completed.stdout == "[]\n"


def test_documented_example_plans_four_servers() -> None:
    region = Region("r0", 0, ("s0", "s1", "s2", "s3"), Ocs("ocs0", ports=12))
    fabric = Fabric("lab", (region,), 8, 3, 1, 100e9, Eps(servers_per_leaf=4))
    rows = [[0, 9, 1, 1], [1, 0, 9, 1], [1, 1, 0, 9], [9, 1, 1, 0]]
    demand = DemandMatrix(region.servers, rows)
    chosen = plan(fabric, region, demand, policy_named("joint"), CircuitSet())
    assert chosen.bound_s <= chosen.predicted_s <= 2 * chosen.bound_s


def test_each_name_for_other_packages_is_in_one_module() -> None:
    places: dict[str, list[str]] = {name: ["moefabric"] for name in moefabric.__all__}
    for module in API:
        for name in import_module(f"moefabric.api.{module}").__all__:
            places.setdefault(name, []).append(module)
    assert [name for name, found in places.items() if len(found) > 1] == []
