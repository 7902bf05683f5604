"""The page in Chromium, with fabrics in memory."""

import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest

from tests.support.dashboard_page import CHROMIUM, busy_source, chromium, opened, served
from tests.support.dashboard_sources import MemorySource, MemorySources
from tests.support.paths import REPOSITORY

pytest.importorskip("playwright", reason="nightly: needs Chromium: packaging/setup all")

from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.nightly

SAMPLE = REPOSITORY / "tests/golden/report/sample.json"
AXE = REPOSITORY / "tests/data/axe-core/axe.min.js"
PHONE = {"width": 390, "height": 844}
VIOLATIONS = """
async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
  .map((found) => `${found.id}: ${found.nodes.map((node) => node.html).join(" ")}`)
"""
SMALL_TARGETS = """
() => [...document.querySelectorAll("button, select, input, summary, a")]
  .filter((node) => node.checkVisibility() && !node.classList.contains("skip"))
  .map((node) => [node.getBoundingClientRect(), node.outerHTML])
  .filter(([size]) => size.width < 24 || size.height < 24).map(([, text]) => text)
"""
SCROLLS_SIDEWAYS = "() => document.documentElement.scrollWidth > innerWidth"


@pytest.fixture(scope="module")  # Playwright keeps an event loop until it ends
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip("needs Chromium: packaging/setup all")
    with chromium() as started:
        yield started


@pytest.fixture
def source() -> MemorySource:
    return busy_source(4)


@pytest.fixture
def link(source: MemorySource, tmp_path: Path) -> Iterator[str]:
    with served(MemorySources(source), tmp_path) as dashboard:
        yield dashboard.link


@pytest.fixture
def page(browser: Browser, link: str) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda m: faults.append(m.text) if m.type in {"error", "warning"} else None)
    page.goto(link)
    expect(page.locator(".circuit")).to_have_count(4)
    yield page
    context.close()
    assert [fault for fault in faults if "status of 400" not in fault] == []  # a refused command


def test_shows_run_circuits_and_processes(page: Page) -> None:
    expect(page.locator("#verdict")).to_have_text("degraded")
    expect(page.locator("#verdict-note")).to_have_text("the CPU was idle for 4 % only")
    expect(page.locator("#iteration")).to_have_text("8 of 20")
    expect(page.locator("#lit button")).to_have_count(4)
    expect(page.locator("button.nic")).to_have_count(16)
    expect(page.locator("#processes tr")).to_have_count(3)
    expect(page.locator("#timeline canvas")).to_have_attribute("aria-label", re.compile("64 op"))
    expect(page.locator("#traffic")).to_have_text(re.compile(r"[\d.]+ Gb/s"))
    expect(page.locator("#rate-chart .uplot")).to_have_count(1)


RATES = """
async () => {
  const charts = await import("./charts.js");
  const now = Math.floor(Date.now() / 1000);
  charts.showHistory([[now - 60, 5, 6], [now - 59, null, null], [now - 20, 7, 8]]);
  charts.addRates([now - 19.5, 8, 8]);
  charts.addRates([now - 5, 1, 2]);
  const [times, ...rates] = charts.rateData();
  return [times.map((at) => Math.round(10 * (at - now)) / 10), ...rates];
}
"""


def test_rates_are_drawn_when_they_were_read(page: Page) -> None:
    """A gap is one, rates hold until the next ones arrive, and the clock has 24 hours."""
    assert page.evaluate(RATES) == [
        [-60, -59, -20, -19.5, -5.6, -5],
        [5, None, 7, 8, 8, 1],
        [6, None, 8, 8, 8, 2],
    ]
    page.add_init_script(CANVAS_TEXTS)
    page.reload()
    expect(page.locator("#rate-chart .uplot")).to_have_count(1)
    page.wait_for_function("window.texts.some((text) => text[0].includes(':'))")
    labels = page.evaluate("window.texts.filter(([text]) => text.includes(':')).slice(-3)")
    assert all(re.fullmatch(r"[0-2]\d:[0-5]\d:[0-5]\d", text) for text, _, _ in labels)
    ends = sorted((x - width / 2, x + width / 2) for _, x, width in labels)
    assert all(end < start for (_, end), (start, _) in pairwise(ends)), labels


CANVAS_TEXTS = """
window.texts = [];
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, ...rest) {
  window.texts.push([text, x, this.measureText(text).width]);
  return draw.call(this, text, x, ...rest);
};
"""


def test_nothing_of_the_token_stays_in_the_address(page: Page, link: str) -> None:
    assert page.url == link.partition("#")[0]


def test_a_nics_button_makes_it_fail_and_work_again(page: Page, source: MemorySource) -> None:
    button = page.locator("[data-nic='s2/o1']")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    assert source.failures() == [{"kind": "nic", "what": ["s2/o1"]}]
    expect(page.locator("#failures li")).to_have_text("nic s2/o1Clear")
    expect(page.locator("#events")).to_contain_text("nic s2/o1")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    assert source.failures() == []


def test_light_moves_by_the_keyboard_alone(page: Page, source: MemorySource) -> None:
    page.focus("#circuits")
    page.keyboard.type("s0/o2~s3/o2")
    page.keyboard.press("Enter")
    expect(page.locator(".circuit:not(.gone)")).to_have_count(1)
    expect(page.locator("[data-circuit='s0/o2~s3/o2']")).to_have_count(1)
    assert source.light_of["r0"] == ["s0/o2~s3/o2"]
    page.focus("#lit button")
    page.keyboard.press("Enter")
    expect(page.locator(".circuit:not(.gone)")).to_have_count(0)


def test_every_control_is_reached_by_the_tab_key_with_a_visible_focus(page: Page) -> None:
    reached = set[str]()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"fabric", "show-results", "circuits", "dark", "fault-what", "events"} <= reached
    page.focus("#circuits")
    page.keyboard.press("Shift+Tab")
    width = "getComputedStyle(document.activeElement).outlineWidth"
    assert page.evaluate(width) == "2px"


def test_a_refused_command_says_why(page: Page) -> None:
    page.fill("#circuits", "s9~s1")
    page.click("text=Set circuits")
    expect(page.locator("#command")).to_contain_text("'s9~s1' is not one of the servers")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_is_accessible(page: Page, scheme: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.click("[data-nic='s1/e0']")
    expect(page.locator("#failures li")).to_have_count(1)
    page.evaluate(AXE.read_text())
    assert page.evaluate(VIOLATIONS) == []


@pytest.mark.parametrize("servers", [4, 128])
def test_fits_a_phone(browser: Browser, tmp_path: Path, servers: int) -> None:
    with served(MemorySources(busy_source(servers)), tmp_path) as dashboard:
        page = opened(browser, dashboard.link, viewport=PHONE)
        expect(page.locator("#circuit-count")).to_have_text(str(servers))
        assert not page.evaluate(SCROLLS_SIDEWAYS)
        assert page.evaluate(SMALL_TARGETS) == []
        page.close()


def test_shows_128_servers_by_region(browser: Browser, tmp_path: Path) -> None:
    source = busy_source(128)
    with served(MemorySources(source), tmp_path) as dashboard:
        page = opened(browser, dashboard.link, viewport={"width": 1440, "height": 1000})
        expect(page.locator(".region")).to_have_count(16)
        expect(page.locator(".circuit")).to_have_count(128)
        expect(page.locator("button.nic")).to_have_count(32)  # those of the first region
        page.click("summary >> text=r5")
        expect(page.locator("[data-nic='s40/o0']")).to_be_visible()
        page.select_option("#region", "r5")
        expect(page.locator("#lit button").first).to_have_text("s40/o0~s41/o1 ✕")
        page.click("#dark")
        expect(page.locator(".circuit:not(.gone)")).to_have_count(120)
        page.close()


def test_asks_for_the_token_and_refuses_a_wrong_one(browser: Browser, link: str) -> None:
    page = browser.new_page()
    page.goto(link.partition("#")[0])
    expect(page.locator("#login")).to_be_visible()
    page.fill("#token", "wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#login-fault")).to_have_text("The token is wrong.")
    page.fill("#token", link.rpartition("=")[2])
    page.keyboard.press("Enter")
    expect(page.locator(".circuit")).to_have_count(4)
    page.close()


def test_follows_fabrics_that_end_and_start(browser: Browser, tmp_path: Path) -> None:
    sources = MemorySources()
    with served(sources, tmp_path) as dashboard:
        page = browser.new_page()
        page.goto(dashboard.link)
        expect(page.locator("#empty")).to_be_visible()
        source = busy_source(4)
        sources.sources["lab"] = source
        expect(page.locator("#live")).to_be_visible()
        del sources.sources["lab"]
        expect(page.locator("#empty")).to_be_visible()
        expect(page.locator("#live")).to_be_hidden()
        page.close()


def test_saved_result_is_shown_in_a_frame_that_runs_no_code(page: Page, tmp_path: Path) -> None:
    for name in ("before.json", "after.json"):
        shutil.copy(SAMPLE, tmp_path / name)
    (tmp_path / "other.json").write_text('{"demand": []}')
    page.click("text=Results")
    expect(page.locator("#saved tr")).to_have_count(2)
    page.check("[aria-label='before.json']")
    page.click("#render")
    report = page.frame_locator("#report")
    expect(report.locator("h1")).to_have_text("prototype")
    assert page.locator("#report").get_attribute("sandbox") == ""
    page.evaluate(AXE.read_text())
    assert page.evaluate(VIOLATIONS.replace("document,", "{exclude: ['iframe']},")) == []
