"""Readiness of a machine, and `moefabric doctor` without root."""

import os

import pytest
from click.testing import CliRunner

from moefabric.emulator.fabric.machine_probe import Finding, probe_machine, readiness
from moefabric.ui.cli.main import main

ROOT = Finding("root", True, "", needed=True)
BPF = Finding("packet switches", True, "", needed=True, instead="Open vSwitch")
BFIFO = Finding("bfifo", False, "no such qdisc")
OVS = Finding("Open vSwitch", True, "")


def lacking(finding: Finding, *, is_unknown: bool = False) -> Finding:
    return Finding(
        finding.what,
        False,
        "",
        is_unknown=is_unknown,
        needed=finding.needed,
        instead=finding.instead,
    )


@pytest.mark.parametrize(
    ("findings", "text"),
    [
        ([ROOT, BPF, OVS], "ready for run, up"),
        ([ROOT, BPF, BFIFO, lacking(OVS)], "ready for run, up; without: bfifo, Open vSwitch"),
        ([ROOT, lacking(BPF), OVS], "ready for run, up; without: packet switches"),
        (
            [ROOT, lacking(BPF), lacking(OVS)],
            "ready for predict, plan; not for run, up; needs: packet switches",
        ),
        (
            [lacking(ROOT), lacking(BPF, is_unknown=True), BFIFO],
            "ready for predict, plan; not for run, up; needs: root; unknown: packet switches",
        ),
    ],
)
def test_readiness_is_one_line(findings: list[Finding], text: str) -> None:
    ready = readiness(findings)
    assert ready.text == text
    assert ready.is_ready == text.startswith("ready for run")


def test_doctor_without_root_knows_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = CliRunner().invoke(main, ["doctor"])
    *lines, last = result.output.splitlines()
    assert result.exit_code == 1
    sudo = "only root can run this check; run `moefabric doctor` with sudo"
    text = " ".join(" ".join(lines).split())
    assert f"unknown shaping (HTB): {sudo}" in text
    assert f"unknown packet switches: {sudo}" in text
    assert last.startswith("ready for predict, plan; not for run, up; needs: root")
    assert "shaping (HTB)" in last
    unknown = [finding for finding in probe_machine() if finding.is_unknown]
    assert len(unknown) == sum(line.startswith("unknown ") for line in lines)
