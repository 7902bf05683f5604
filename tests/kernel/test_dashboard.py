"""The dashboard of a real fabric: it shows what `inspect` says, and its buttons reach the NICs."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from moefabric import Lab, load_fabric
from moefabric.runtime.run_status import RunStatus, write_run_status
from tests.support.dashboard_page import CHROMIUM, chromium, opened
from tests.support.paths import EXAMPLES

pytest.importorskip("playwright", reason="nightly: needs Chromium: packaging/setup all")

from playwright.sync_api import Page, expect

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.usefixtures("own_machine"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Chromium: packaging/setup all"),
]
_END_S = 15
ATTRIBUTES = "(nodes, name) => nodes.map((node) => node.getAttribute(name))"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    spec = load_fabric(EXAMPLES / "fabric.yaml", fabric="page", scale={"bytes": 2000})
    with spec.up() as lab:
        yield lab


@pytest.fixture(scope="module")
def command(lab: Lab) -> Iterator["subprocess.Popen[str]"]:
    program = "from moefabric.ui.cli.main import main; main()"
    argv = [sys.executable, "-c", program, "dashboard", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def page(command: "subprocess.Popen[str]") -> Iterator[Page]:
    assert command.stdout is not None
    link = command.stdout.readline().removeprefix("dashboard: ").strip()
    with chromium() as browser:
        yield opened(browser, link, viewport={"width": 1440, "height": 1000})


def test_shows_what_inspect_says(page: Page, lab: Lab) -> None:
    lab.light("s0~s1", "s2~s3")
    expect(page.locator("#circuit-count")).to_have_text("2")
    expect(page.locator("#processes")).to_contain_text("pid")
    inspection = lab.inspect()
    nics = [nic for server in inspection["servers"] for nic in server["nics"]]
    assert _all(page, "button.nic", "data-nic") == [nic["name"] for nic in nics]
    assert _all(page, "button.nic.down", "data-nic") == [
        nic["name"] for nic in nics if not nic["carrier"]
    ]
    lit = ["~".join(ends) for ocs in inspection["ocs"] for ends in ocs["circuits"]]
    assert sorted(_all(page, ".circuit:not(.gone)", "data-circuit")) == sorted(lit)
    shown = page.locator("#processes tr").all_inner_texts()
    for process in inspection["processes"]:
        assert f"{process['name']}\tpid {process['pid']}" in shown
    for controller in inspection["controllers"]:
        assert f"controller of {controller['region']}\tready" in shown


def test_a_nics_button_takes_its_link_down_and_up_again(page: Page, lab: Lab) -> None:
    button = page.locator("[data-nic='s0/e0']")
    button.click()
    expect(page.locator("button.nic.down")).to_have_attribute("data-nic", "s0/e0")
    assert [(f["kind"], f["what"]) for f in lab.faults()] == [("nic", ["s0/e0"])]
    assert not _nic(lab, "s0/e0")["carrier"]
    expect(page.locator("#events")).to_contain_text("nic s0/e0")
    button.click()
    expect(page.locator("button.nic.down")).to_have_count(0)
    assert lab.faults() == []
    assert _nic(lab, "s0/e0")["carrier"]


def test_light_from_the_page_carries_traffic_that_it_counts(page: Page, lab: Lab) -> None:
    page.fill("#circuits", "s0~s3")
    page.click("text=Set circuits")
    expect(page.locator("#command")).to_have_text("light s0~s3: done")
    assert lab.circuits() == ["s0/o0~s3/o0"]
    sender = lab.popen("s0", f"ping -q -i 0.002 -s 1400 {lab.address('s3')}", stdout=-3)
    expect(page.locator("#traffic-note")).to_have_text("100 % by light")
    sender.terminate()


def test_exports_metrics_with_the_token(page: Page) -> None:
    token = page.evaluate("sessionStorage.getItem('moefabric-token')")
    address = f"{page.url}metrics"
    assert page.request.get(address).status == 401
    reply = page.request.get(address, headers={"Authorization": f"Bearer {token}"})
    assert 'moefabric_fabric_up{fabric="page"} 1.0' in reply.text()


def test_shows_the_run_that_uses_the_fabric(page: Page, lab: Lab) -> None:
    status = RunStatus(
        run_id="1", experiment="prototype", fabric="mixnet", policy="spill", pid=1,
        started="2026-01-01T00:00:00+00:00", iteration=2, iterations=5,
    )  # fmt: skip
    write_run_status(lab.run_directory.run_status_file, status)
    expect(page.locator("#iteration")).to_have_text("3 of 5")
    expect(page.locator("#verdict")).to_have_text("pass")
    lab.run_directory.run_status_file.unlink()
    expect(page.locator("#verdict-note")).to_have_text("no run uses this fabric")


def test_an_interrupt_ends_it_at_once_while_a_page_watches(
    page: Page, command: "subprocess.Popen[str]"
) -> None:
    command.send_signal(signal.SIGINT)
    assert command.wait(_END_S) == 0
    expect(page.locator("#connection")).to_have_text("connection lost; trying again")


def _nic(lab: Lab, name: str) -> dict[str, Any]:
    nics = [nic for server in lab.inspect()["servers"] for nic in server["nics"]]
    return next(nic for nic in nics if nic["name"] == name)


def _all(page: Page, selector: str, attribute: str) -> list[str]:
    return list(page.locator(selector).evaluate_all(ATTRIBUTES, attribute))
