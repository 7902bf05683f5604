"""What tests may need of a machine: a test that lacks something is skipped and says what; with CI=true it fails.

A tier's folder is its need: everything in `tests/kernel` needs root and namespaces, everything in `tests/system` an
engine. Single tests say more by marker (`ovs`, `sshd`). What a machine can't help, such as a kernel built without a
module, is told by `pytest.skip(KERNEL_LACKS + ...)` and stays a skip everywhere.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile(
    "quiet", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("quiet")

# What a script runs in the background ignores Ctrl-C, and so would every program that tests start in order to interrupt it.
signal.signal(signal.SIGINT, signal.default_int_handler)

KERNEL_LACKS = "this kernel has no "
TIERS = {"kernel": "kernel", "system": "engine"}


def _lacks_programs(*names: str, remedy: str) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    missing = [name for name in names if shutil.which(name, path=path) is None]
    return f"{', '.join(missing)} not found; {remedy}" if missing else None


def _lacks_namespaces() -> str | None:
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
    if missing := _lacks_programs("docker", remedy="packaging/setup test installs it"):
        return missing
    from docker import DockerClient
    from docker.errors import DockerException

    try:
        client = DockerClient.from_env(timeout=10)
        client.ping()
        client.close()
    except DockerException as fault:
        return f"no Docker Engine answers ({fault}); run the tests through packaging/engine"
    return None


NEEDS: dict[str, Callable[[], str | None]] = {
    "kernel": _lacks_namespaces,
    "ovs": _lacks_ovs,
    "sshd": _lacks_sshd,
    "engine": _lacks_engine,
}


@cache
def lacks(need: str) -> str | None:
    """What this machine lacks for a marker, in words; asked once."""
    return NEEDS[need]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test, before any of its fixtures acts, on a machine that lacks what its markers need."""
    for need in sorted(NEEDS.keys() & {mark.name for mark in item.iter_markers()}):
        if missing := lacks(need):
            pytest.skip(missing)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the marker of its tier."""
    here = Path(__file__).parent
    for item in items:
        tier = item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""
        if tier in TIERS:
            item.add_marker(TIERS[tier])


def _skip_reason(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


def _must_not_skip(report: pytest.TestReport | pytest.CollectReport) -> bool:
    in_ci = os.environ.get("CI") == "true"
    return (
        in_ci
        and report.skipped
        and not hasattr(report, "wasxfail")
        and KERNEL_LACKS not in _skip_reason(report.longrepr)
    )


def _fail_instead(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = _skip_reason(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: a skip is a failure with CI=true\n{reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped test into a failed one, in CI."""
    report = yield
    if _must_not_skip(report):
        _fail_instead(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn a file skipped as a whole into a failure, in CI."""
    report = yield
    if _must_not_skip(report):
        _fail_instead(report)
    return report
