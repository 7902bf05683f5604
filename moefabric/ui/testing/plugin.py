"""The plugin of pytest: options, the marker `fabric`, and the fixtures.

`pytest --moefabric` runs tests that use a fabric; without the option they are skipped. A fabric
gets a name of its own in each worker of pytest-xdist, so that workers don't share any.
"""

import itertools
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from moefabric import EmulatedFabric, Experiment, Result
    from moefabric.ui.testing.lab import FabricUnderTest

_SESSION: Final = "_moefabric_session"
"""The fixture on which all others depend. Other fixtures may be called `fabric`, too."""
_LABS: Final = pytest.StashKey[list["FabricUnderTest"]]()
_OPTIONS: Final[Mapping[str, tuple[str, str, dict[str, Any]]]] = {
    "fabric": ("fabric of tests without the marker `fabric`", "", {"metavar": "FILE"}),
    "no_root": (
        "what tests that use a fabric do without root",
        "skip",
        {"choices": ("skip", "fail")},
    ),
    "artefacts": ("folder for what failed tests leave", "moefabric-artefacts", {"metavar": "DIR"}),
}
"""Text, default and further properties of options, which are keys of the configuration file too."""
_DEFAULTS: Final[Mapping[str, Any]] = {"fabric": "test", "nic_rate": "100Gb/s"}
"""Keys of a fabric that a marker describes without a file."""
_LONGEST_NAME: Final = 31
_LONGEST_FOLDER: Final = 200
_NUMBERS: Final = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, each with a default in the configuration file."""
    group = parser.getgroup("moefabric", "emulated fabrics")
    group.addoption("--moefabric", action="store_true", help="run tests that use a fabric")
    for name, (text, default, keys) in _OPTIONS.items():
        shown = f"{text} (default: {default})" if default else text
        group.addoption(f"--moefabric-{name.replace('_', '-')}", help=shown, **keys)
        parser.addini(f"moefabric_{name}", text, default=default)


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker."""
    config.addinivalue_line(
        "markers",
        "fabric(file=None, **keys): the fabric of a test: a YAML file, the keys of one, or both",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that use a fabric if the option is missing, or root is."""
    if not config.getoption("--moefabric"):
        reason = "uses a fabric: run pytest with --moefabric"
    elif os.geteuid() and _option(config, "no_root") == "skip":
        reason = "a fabric needs root: run pytest with sudo, or with --moefabric-no-root=fail"
    else:
        return
    for item in items:
        if _SESSION in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=reason))


def _option(config: pytest.Config, name: str) -> str:
    """Return the value of an option, or that of the configuration file."""
    option = config.getoption(f"--moefabric-{name.replace('_', '-')}")
    return str(option if option is not None else config.getini(f"moefabric_{name}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: "pytest.CallInfo[None]"
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the state, events and logs of the fabrics of a failed test while they are up.

    The traceback of an error that moefabric reports shows the test's frames only.
    """
    if call.excinfo is not None and _LABS in item.stash:
        for entry in call.excinfo.traceback:
            module = entry.frame.f_globals
            if str(module.get("__name__")).startswith("moefabric."):
                module["__tracebackhide__"] = _is_reported  # pytest looks for it in modules, too
    report = yield
    if report.failed and call.when != "teardown":
        folders = [str(lab.save_artefacts()) for lab in item.stash.get(_LABS, [])]
        if folders:
            report.sections.append(("moefabric", "state, events and logs: " + ", ".join(folders)))
    return report


def _is_reported(error: "pytest.ExceptionInfo[BaseException]") -> bool:
    """Return whether an error is moefabric's own, whose text says all and whose frames nothing."""
    from moefabric.core.errors import MoefabricError

    return error.errisinstance(MoefabricError)


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Let a test fail with the message of moefabric's error alone: a wrong file needs no more."""
    from moefabric.core.errors import MoefabricError

    try:
        yield
    except MoefabricError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


@pytest.fixture(scope="session")
def _moefabric_session() -> None:
    """Mark the tests that use a fabric."""


@pytest.fixture
def fabric(request: pytest.FixtureRequest, _moefabric_session: None) -> "Iterator[FabricUnderTest]":
    """Yield a fabric for this test alone, from the marker `fabric` or the configured file."""
    described = _described_fabric(request, request.node.get_closest_marker("fabric"))
    with _running(request, described) as lab, _keeping_artefacts(request, lab):
        yield lab


class _SharedFabric(ExitStack):
    """The fabric that tests share. Once it is closed, the next test brings it up again."""

    lab: "FabricUnderTest | None" = None

    def close(self) -> None:
        self.lab = None
        super().close()


@pytest.fixture(scope="session")
def _moefabric_shared_fabric(_moefabric_session: None) -> Iterator[_SharedFabric]:
    with _SharedFabric() as shared:
        yield shared


@pytest.fixture
def shared_fabric(
    request: pytest.FixtureRequest, _moefabric_shared_fabric: _SharedFabric
) -> "Iterator[FabricUnderTest]":
    """Yield the fabric that all tests share, without circuits, failures or programs."""
    names = request.fixturenames
    if "fabric" not in names and any(m.name == "fabric" for m in request.node.own_markers):
        pytest.fail("shared_fabric has no marker `fabric`: use the fixture fabric", pytrace=False)
    shared = _moefabric_shared_fabric
    if shared.lab is None:
        shared.lab = shared.enter_context(_running(request, _described_fabric(request, None)))
    lab = shared.lab
    lab.artefacts = _artefacts(request.config, request.node.nodeid)
    with _keeping_artefacts(request, lab):
        try:
            yield lab
        finally:
            try:
                lab.reset()
            except BaseException:
                shared.close()
                raise


@pytest.fixture
def run_experiment(_moefabric_session: None) -> "Callable[..., Result]":
    """Run an experiment; the test fails if its verdict is `invalid`.

    The fixture is a function of the experiment's file, or an `Experiment`, with changes of its
    keys. It returns the `Result`.
    """

    def run(experiment: "str | Path | Experiment", **changes: Any) -> "Result":
        from moefabric.api.experiment import Experiment

        with _errors_in_one_line():
            if not isinstance(experiment, Experiment):
                experiment = Experiment.load(experiment, **changes)
            result = experiment.run()
        if result.verdict == "invalid":
            lines = [
                f"{fabric.fabric} is {finding.verdict}: {finding.text}"
                for fabric in result.results
                for finding in fabric.fidelity.explanations
            ]
            pytest.fail("\n".join(["the run's verdict is invalid", *lines]), pytrace=False)
        return result

    return run


def _described_fabric(
    request: pytest.FixtureRequest, marker: pytest.Mark | None
) -> "EmulatedFabric":
    """Return the fabric of a marker, or the configured one, with a name of this worker's."""
    from moefabric.api.fabric import EmulatedFabric

    config = request.config
    keys = dict(marker.kwargs) if marker else {}
    file = marker.args[0] if marker and marker.args else None
    if file is None and not {"regions", "nics"} <= set(keys):
        file = _option(config, "fabric")
        if not file:
            pytest.fail(
                "which fabric? Give @pytest.mark.fabric(FILE), --moefabric-fabric FILE, or "
                "moefabric_fabric in the configuration of pytest",
                pytrace=False,
            )
    with _errors_in_one_line():
        if file is None:
            described = EmulatedFabric(**{**_DEFAULTS, **keys})
        else:
            described = EmulatedFabric.load(config.rootpath / file, **keys)
    name = _worker_name(config, described.name)
    return EmulatedFabric.of(described.spec.model_copy(update={"fabric": name}))


def _worker_name(config: pytest.Config, name: str) -> str:
    """Return a fabric's name that no other test, worker or session uses."""
    worker = getattr(config, "workerinput", {}).get("workerid", "")
    suffix = f"-{worker}{'-' if worker else ''}{os.getpid()}-{next(_NUMBERS)}"
    return name[: _LONGEST_NAME - len(suffix)] + suffix


def _artefacts(config: pytest.Config, nodeid: str) -> Path:
    """Return the folder of a test."""
    folder = re.sub(r"[^\w.-]+", "-", nodeid)[:_LONGEST_FOLDER]
    return config.rootpath / _option(config, "artefacts") / folder


@contextmanager
def _keeping_artefacts(request: pytest.FixtureRequest, lab: "FabricUnderTest") -> Iterator[None]:
    """Save the state of a fabric if the test fails before the block ends."""
    labs = request.node.stash.setdefault(_LABS, [])
    labs.append(lab)
    try:
        yield
    finally:
        labs.remove(lab)  # a test may run again, on another fabric
        lab.drop_artefacts()


@contextmanager
def _running(
    request: pytest.FixtureRequest, described: "EmulatedFabric"
) -> "Iterator[FabricUnderTest]":
    """Bring a fabric up, and remove it at the end, which may be that of this process."""
    from moefabric.ui.testing.lab import FabricUnderTest

    with _errors_in_one_line():
        described.up()
    artefacts = _artefacts(request.config, request.node.nodeid)
    with FabricUnderTest(described.name, artefacts) as lab:
        yield lab
