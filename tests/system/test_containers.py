"""The main job in containers, by the README's command, on a real Docker Engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.conftest import ITERATIONS, LAYERS

if TYPE_CHECKING:
    import docker

    from tests.system.conftest import Project

FOUR_RIGHTS = {"NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_NICE"}
INVALID = 3
SERVICES = ["testbed", "ocs", "controller", "network"]


def declared(project: Project) -> dict[str, Any]:
    told = project.compose("config", "--format", "json", timeout_s=60)
    assert told.status == 0, told.text
    services: dict[str, Any] = json.loads(told.text)["services"]
    return services


def test_the_engine_answers(engine: docker.DockerClient) -> None:
    assert engine.ping()


def test_the_testbed_gets_four_rights_and_nobody_is_privileged(project: Project) -> None:
    services = declared(project)
    assert set(services) == set(SERVICES)
    assert not any(service.get("privileged") for service in services.values())
    assert {name: set(service.get("cap_add", ())) for name, service in services.items()} == {
        "testbed": FOUR_RIGHTS,
        "ocs": set(),
        "controller": set(),
        "network": set(),
    }
    assert [name for name in SERVICES if services[name].get("cap_drop") == ["ALL"]] == [
        "ocs",
        "controller",
        "network",
    ]


def test_all_live_in_one_network_namespace_that_leads_nowhere(project: Project) -> None:
    assert {name: service["network_mode"] for name, service in declared(project).items()} == {
        "testbed": "service:network",
        "ocs": "service:network",
        "controller": "service:network",
        "network": "none",
    }


@pytest.mark.timeout(1800)
def test_the_image_holds_the_command_and_needs_no_rights_for_its_help(
    engine: docker.DockerClient, image: str
) -> None:
    said = engine.containers.run(
        image, ["moefabric", "--help"], network_mode="none", cap_drop=["ALL"], remove=True
    )
    assert b"run" in said
    assert b"inspect" in said


@pytest.mark.timeout(1500)
def test_compose_up_testbed_replays_the_prototype_and_says_whether_it_can_be_believed(
    engine: docker.DockerClient, project: Project, image: str
) -> None:
    ran = project.compose("up", "--exit-code-from", "testbed", "testbed", timeout_s=900)
    assert ran.status in {0, INVALID}, ran.text
    (testbed,) = engine.containers.list(
        all=True,
        filters={
            "label": [f"com.docker.compose.project={project.name}", "com.docker.compose.service=testbed"]
        },
    )
    assert testbed.attrs["HostConfig"]["Privileged"] is False
    assert {right.removeprefix("CAP_") for right in testbed.attrs["HostConfig"]["CapAdd"]} == FOUR_RIGHTS
    results = json.loads((project.folder / "out" / "prototype.json").read_text())["results"]
    assert [result["fabric"] for result in results] == ["eps", "mixnet", "mixnet-spill", "static"]
    for result in results:
        sent = result["integrity"]
        assert sent["bytes_sent"] == sent["bytes_received"] > 0
        assert (sent["corrupt"], sent["lost_transfers"]) == (0, 0)
        assert len(result["collectives"]) == ITERATIONS * LAYERS * 4
    # A machine that others share may be taken away in the middle of a run; the verdict says so, and containers can't help it.
    assert (ran.status == INVALID) == any(r["fidelity"]["verdict"] == "invalid" for r in results)
    assert "<html" in (project.folder / "out" / "prototype.html").read_text()


@pytest.mark.timeout(300)
def test_a_fault_in_the_testbed_is_composes_exit_status(project: Project, image: str) -> None:
    ran = project.compose("run", "--rm", "-T", "testbed", "moefabric", "run", "no-such.yaml", timeout_s=120)
    assert ran.status in {1, 2}, ran.text
    assert "no-such.yaml" in ran.text
