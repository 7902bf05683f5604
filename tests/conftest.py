"""Requirements of tests: a test without them is skipped with the reason; with CI=true it fails.

The folder of a tier sets its requirement: `tests/kernel` needs root and namespaces, `tests/system`
a Docker engine. Markers (`ovs`, `sshd`) add requirements of single tests. What a machine can't
change, such as a kernel without a module, is a `pytest.skip(KERNEL_LACKS + ...)` and stays a skip
everywhere; so does a `pytest.skip(OPTIONAL + ...)` for want of an optional extra. Tests marked
`nightly`, and those skipped with a reason that starts with NIGHTLY, run by `make test-all`.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The duration of an example depends on the machine's load more than on the code. Examples are new
# ones in each session; `make test-all` tries four times as many, and
# `pytest --hypothesis-profile long` forty times as many.
for profile, examples in (("short", 25), ("nightly", 100), ("long", 1000)):
    settings.register_profile(
        profile, deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("short")

# A background job of a shell ignores SIGINT, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests expect the default speed of a machine, whatever was measured on this one.
os.environ["MOEFABRIC_MACHINE"] = "/nonexistent/machine.json"

KERNEL_LACKS = "this kernel has no "
OPTIONAL = "optional: "
"""Start of the reason of a skip for want of an optional extra (`packaging/oracle`)."""
NIGHTLY = "nightly: "
"""Start of the reason of a skip for want of what `packaging/setup all` installs."""
TIERS = {"kernel": "kernel", "system": "engine"}
FAILED = pytest.StashKey[bool]()


def _lacks_programs(*names: str, remedy: str) -> str | None:
    path = os.pathsep.join(
        [os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"]
    )
    missing = [name for name in names if shutil.which(name, path=path) is None]
    return f"{', '.join(missing)} not found; {remedy}" if missing else None


def _lacks_namespaces() -> str | None:
    if (repository := Path(__file__).parents[1]).is_relative_to("/tmp"):
        return f"tests mount a /tmp of their own, which hides {repository}: move it elsewhere"
    if os.geteuid() != 0:
        return "root is needed for network namespaces; run as root"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun is missing; modprobe tun"
    return _lacks_programs(
        "ip", "tc", "unshare", "nsenter", "mnexec", remedy="packaging/setup test installs them"
    )


def _lacks_ovs() -> str | None:
    return _lacks_programs(
        "ovs-vswitchd", "ovsdb-server", "ovs-vsctl", remedy="packaging/setup test installs them"
    )


def _lacks_sshd() -> str | None:
    return _lacks_programs("sshd", "ssh-keygen", remedy="packaging/setup test installs them")


def _lacks_engine() -> str | None:
    if missing := _lacks_programs("docker", remedy="packaging/setup all installs it"):
        return missing
    from docker import DockerClient
    from docker.errors import DockerException

    try:
        client = DockerClient.from_env(timeout=10)
        client.ping()
        client.close()
    except DockerException as error:
        return f"no Docker Engine answers ({error}); run the tests through packaging/engine"
    return None


REQUIREMENTS: dict[str, Callable[[], str | None]] = {
    "kernel": _lacks_namespaces,
    "ovs": _lacks_ovs,
    "sshd": _lacks_sshd,
    "engine": _lacks_engine,
}


@cache
def lacks(marker: str) -> str | None:
    """Return what this machine lacks for a marker, or None."""
    return REQUIREMENTS[marker]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test on a machine that lacks its requirements, before any fixture runs."""
    for marker in sorted(REQUIREMENTS.keys() & {mark.name for mark in item.iter_markers()}):
        if missing := lacks(marker):
            pytest.skip(missing)


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a folder of its own for fabrics, which two sessions may name alike.

    Workers of a session inherit it.
    """
    if "MOEFABRIC_RUN_DIR" not in os.environ:
        folder = tempfile.mkdtemp(prefix="mf", dir="/tmp")  # paths of sockets are short
        os.environ["MOEFABRIC_RUN_DIR"] = folder
        config.add_cleanup(partial(_remove_run_directory, Path(folder)))


def _remove_run_directory(folder: Path) -> None:
    """Remove a session's folder for fabrics, but not what a fabric that is left there needs."""
    del os.environ["MOEFABRIC_RUN_DIR"]
    for file in folder.iterdir():
        if not file.is_dir():
            file.unlink()
    with suppress(OSError):
        folder.rmdir()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the marker of its tier, and begin with the files that have slow tests.

    A file that takes long and comes last would keep one worker busy while the others have ended.
    """
    repository = Path(__file__).parents[1]
    for item in items:
        inside = item.path.is_relative_to(repository)
        folders = item.path.relative_to(repository).parts if inside else ()
        for tier in TIERS.keys() & set(folders):
            item.add_marker(TIERS[tier])
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def _skip_reason(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


def _must_not_skip(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> bool:
    in_ci = os.environ.get("CI") == "true"
    without_nightly = "not nightly" in config.option.markexpr
    accepted = (KERNEL_LACKS, OPTIONAL, *([NIGHTLY] if without_nightly else []))
    reason = _skip_reason(report.longrepr)
    is_skip = report.skipped and not hasattr(report, "wasxfail")
    return in_ci and is_skip and not any(start in reason for start in accepted)


def _turn_into_failure(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = _skip_reason(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: a skip is a failure with CI=true\n{reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped test into a failure in CI, and note whether the test has failed."""
    report = yield
    if _must_not_skip(report, item.config):
        _turn_into_failure(report)
    item.stash[FAILED] = report.failed or (report.when != "setup" and item.stash[FAILED])
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Tear all fixtures down after a failure, so that what runs next has a working fabric."""
    if item.stash[FAILED]:
        item.session._setupstate.teardown_exact(None)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn a skipped file into a failure in CI."""
    report = yield
    if _must_not_skip(report, collector.config):
        _turn_into_failure(report)
    return report
