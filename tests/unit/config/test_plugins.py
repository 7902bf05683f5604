"""Plug-ins by entry point and by module, and what is said of those that can't be used."""

import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import pytest

from moefabric.config import plugins
from moefabric.config.loader import load_experiment
from moefabric.config.plugins import (
    GROUPS,
    OCS_DRIVERS,
    OCS_PROFILES,
    POLICIES,
    TRANSPORTS,
    load_plugin,
    plugin_names,
)
from moefabric.core.errors import SpecError
from moefabric.core.ocs_dialect import OcsDriverFactory
from moefabric.core.transport import Transport
from moefabric.planner.mixnet import MIXNET
from moefabric.planner.policy import EpsOnly, Policy
from tests.support.paths import EXAMPLES, REPOSITORY


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder, with nothing in the caches of plug-ins."""
    monkeypatch.chdir(tmp_path)
    cached = (plugins._built_in, plugins._registered, plugins._found, plugins._loaded)
    for cache in cached:
        cache.cache_clear()
    yield tmp_path
    for cache in cached:
        cache.cache_clear()


def test_installed_entry_points_are_those_of_the_project_file() -> None:
    """If this fails, moefabric was installed before pyproject.toml changed: run packaging/setup."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    written = {group: dict(entries) for group, entries in project["entry-points"].items()}
    assert set(written) <= {*GROUPS, "pytest11", "torch.backends"}
    for group, entries in written.items():
        installed = {entry.name: entry.value for entry in entry_points(group=group)}
        assert {name: installed.get(name) for name in entries} == entries


@pytest.mark.parametrize("group", GROUPS)
def test_every_registered_plugin_loads(group: str) -> None:
    names = plugin_names(group)
    assert names
    for name in names:
        assert load_plugin(group, name) is load_plugin(group, name)


def test_a_class_is_called_and_an_object_is_itself() -> None:
    assert load_plugin(POLICIES, "eps") == EpsOnly()
    assert load_plugin(POLICIES, "mixnet") is MIXNET
    assert load_plugin(POLICIES, "moefabric.planner.mixnet:MIXNET") is MIXNET


class Sized(Protocol):
    """A part of the tests below."""

    given: dict[str, Any]


def test_arguments_of_a_reference_are_passed_on(folder: Path) -> None:
    (folder / "sized.py").write_text("class Sized:\n    def __init__(self, **a): self.given = a\n")
    part = load_plugin(POLICIES, "sized:Sized(size=4, share=0.25, kind=fast, deep=true)", Sized)
    assert part.given == {"size": 4, "share": 0.25, "kind": "fast", "deep": True}
    assert load_plugin(POLICIES, "sized:Sized()", Sized).given == {}
    assert load_plugin(POLICIES, "eps()") == EpsOnly()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("eps(", "arguments are written as in name"),
        ("eps(4)", "arguments are written as in name"),
        ("eps(a=1, a=2)", "arguments are written as in name"),
        ("eps(a=f(x))", "arguments are written as in name"),
        ("eps(size=4)", "unexpected keyword argument 'size'"),
        ("mixnet(size=4)", "not callable"),
        ("nonesuch(size=4)", "'nonesuch' is not one of"),
    ],
)
def test_wrong_arguments_are_named(reference: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_plugin(POLICIES, reference)


def test_modules_are_found_in_the_current_folder(folder: Path) -> None:
    (folder / "nearby_policy.py").write_text(
        "class Box:\n    class Nearby:\n        given = {'here': 1}\n"
    )
    assert load_plugin(POLICIES, "nearby_policy:Box.Nearby", Sized).given == {"here": 1}


def test_registered_package_is_found_and_does_not_replace_a_built_in_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = folder / "stranger-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[moefabric.policies]\nmixnet = stranger:POLICY\nodd = stranger:POLICY\n"
    )
    (folder / "stranger.py").write_text("class POLICY:\n    name = 'odd'\n")
    monkeypatch.syspath_prepend(folder)
    assert plugin_names(POLICIES)[-1] == "odd"
    assert load_plugin(POLICIES, "odd").name == "odd"
    assert load_plugin(POLICIES, "mixnet") is MIXNET


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        pytest.param(
            "best", r"^policy: 'best' is not one of .*mixnet.*, nor package", id="unknown"
        ),
        pytest.param("mixxnet", r"module:Name; did you mean mixnet\?$", id="slip"),
        pytest.param(":Best", r"':Best' is not one of", id="no-module"),
        pytest.param(
            "no_such_module:Best",
            "'no_such_module:Best': no_such_module fails: ModuleNotFoundError: No module named "
            "'no_such_module'; modules are looked up on Python's path and in the current folder, "
            "/.*, not in the folder of a file$",
            id="no-such-module",
        ),
        pytest.param(
            "partial.py:OBJECT",
            r"; a module is named without \.py: partial:Name$",
            id="name-of-a-file",
        ),
        pytest.param(
            "moefabric.planner.mixnet:BEST",
            "moefabric.planner.mixnet fails: AttributeError: .* no attribute 'BEST'",
            id="no-such-name",
        ),
        pytest.param(
            "partial:OBJETC", r"no attribute 'OBJETC'; did you mean OBJECT\?$", id="slip-in-module"
        ),
        pytest.param(
            "here/partial.py",
            r"^policy: 'here/partial.py' is a file; a module is named without \.py: partial:Name$",
            id="file",
        ),
        pytest.param("broken:A", "broken fails: ZeroDivisionError: division", id="raises"),
        pytest.param("leaving:A", "leaving fails: SystemExit: 3", id="leaves"),
        pytest.param("needy:A", "needy fails: TypeError: .*'speed'", id="needs-arguments"),
        pytest.param(
            "partial:A",
            "'partial:A': A has no reconfigures, splits_by_demand, suits_patch_panel: a policy has "
            "the members of moefabric.planner.policy.Policy",
            id="class-lacks-members",
        ),
        pytest.param(
            "partial:OBJECT",
            "'partial:OBJECT' has no reconfigures, splits_by_demand, suits_patch_panel: a policy "
            "has the members of moefabric.planner.policy.Policy",
            id="object-lacks-members",
        ),
        pytest.param("partial:make", "is called, or a function whose annotation", id="no-promise"),
    ],
)
def test_reason_why_a_plugin_cannot_be_used(folder: Path, reference: str, message: str) -> None:
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "leaving.py").write_text("raise SystemExit(3)\n")
    (folder / "needy.py").write_text(
        "from moefabric.planner.policy import EpsOnly\n"
        "class A(EpsOnly):\n    def __init__(self, speed): ...\n"
    )
    (folder / "partial.py").write_text(
        "class A:\n    name = 'a'\n    forwards = False\n    circuits = split = print\n"
        "OBJECT = A()\ndef make(): return OBJECT\n"
    )
    with pytest.raises(SpecError, match=message):
        load_plugin(POLICIES, reference, Policy)


@pytest.mark.parametrize(
    ("group", "reference", "protocol"),
    [
        pytest.param(TRANSPORTS, "subprocess:Popen(args=SCRIPT)", Transport, id="class"),
        pytest.param(TRANSPORTS, "os:system(command=SCRIPT)", Transport, id="built-in-function"),
        pytest.param(TRANSPORTS, "subprocess:call(args=SCRIPT)", Transport, id="function"),
        pytest.param(
            OCS_DRIVERS, "zipfile:ZipFile(file=VICTIM, mode=w)", OcsDriverFactory, id="same-method"
        ),
        pytest.param(OCS_PROFILES, "subprocess:Popen(args=SCRIPT)", None, id="no-protocol"),
    ],
)
def test_what_makes_no_part_is_not_called(
    folder: Path, group: str, reference: str, protocol: type | None
) -> None:
    script, victim = folder / "script", folder / "victim"
    script.write_text(f"#!/bin/sh\ntouch {folder}/ran\n")
    script.chmod(0o755)
    victim.write_text("whole")
    called = reference.replace("SCRIPT", str(script)).replace("VICTIM", str(victim))
    with pytest.raises(SpecError, match=r"members of|nothing is called"):
        load_plugin(group, called, protocol)
    assert not (folder / "ran").exists()
    assert victim.read_text() == "whole"


def test_function_is_called_whose_annotation_promises_the_part(folder: Path) -> None:
    (folder / "factory.py").write_text(
        "from moefabric.core.transport import TcpTransport\n"
        "def made(name: str = 'x') -> TcpTransport:\n    return TcpTransport(name, 'reno')\n"
    )
    assert load_plugin(TRANSPORTS, "factory:made(name=own)", Transport).name == "own"


def test_files_name_modules_of_installed_packages_and_settings_any(folder: Path) -> None:
    (folder / "lab_policy.py").write_text(
        "import pathlib\n"
        "pathlib.Path('imported').touch()\n"
        "from moefabric.planner.policy import EpsOnly\n"
        "class Own(EpsOnly): ...\n"
    )
    text = (EXAMPLES / "prototype.yaml").read_text()
    foreign = folder / "foreign.yaml"
    foreign.write_text(text.replace("policy: mixnet}", "policy: 'lab_policy:Own'}"))
    own = EXAMPLES / "prototype.yaml"
    with plugins.modules_in_files(installed_only=True):
        with pytest.raises(SpecError, match="no installed package has the module lab_policy"):
            load_experiment(foreign)
        assert not (folder / "imported").exists()
        load_experiment(own, ["fabrics[1].policy=moefabric.planner.joint:Joint"])
        load_experiment(own, ["fabrics[1].policy=lab_policy:Own"])
        with plugins.modules_in_files(installed_only=False):
            load_experiment(foreign)
    load_experiment(foreign)


@pytest.mark.parametrize("module", ["listed", "shared.added", "installed"])
def test_files_of_others_import_nothing_from_the_current_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, module: str
) -> None:
    """A module that a distribution lacks, one of a package without `__init__`, an optional one."""
    installed = tmp_path_factory.mktemp("site")
    (installed / "other-1.dist-info").mkdir()
    (installed / "other-1.dist-info" / "METADATA").write_text("Name: other\nVersion: 1\n")
    (installed / "other-1.dist-info" / "top_level.txt").write_text("listed\nshared\ninstalled\n")
    (installed / "shared").mkdir()
    (installed / "installed.py").write_text("import optional\n")
    (folder / "shared").mkdir()
    for path in ("listed.py", "shared/added.py", "optional.py"):
        (folder / path).write_text("import pathlib\npathlib.Path('imported').touch()\n")
    file = folder / "foreign.yaml"
    text = (EXAMPLES / "prototype.yaml").read_text()
    file.write_text(text.replace("policy: mixnet}", f"policy: '{module}:Own'}}"))
    with pytest.MonkeyPatch.context() as patch, plugins.modules_in_files(installed_only=True):
        patch.syspath_prepend(installed)
        with pytest.raises(SpecError, match="No module named"):
            load_experiment(file)
    assert not (folder / "imported").exists()
