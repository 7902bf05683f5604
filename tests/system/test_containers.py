"""Runs the demo in containers by the README's command on a real Docker Engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.slow_machines import finished_run
from tests.system.conftest import ITERATIONS, LAYERS

if TYPE_CHECKING:
    import docker

    from tests.system.conftest import Project

CAPABILITIES = {
    *("CHOWN", "DAC_OVERRIDE", "NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_CHROOT", "SYS_NICE")
}
MOST_IMAGE_BYTES = 700e6
SERVICES = ["testbed", "ocs", "controller", "network"]


def declared(project: Project) -> dict[str, Any]:
    config = project.compose("config", "--format", "json", timeout_s=60)
    assert config.status == 0, config.text
    services: dict[str, Any] = json.loads(config.text)["services"]
    return services


def test_engine_answers_ping(engine: docker.DockerClient) -> None:
    assert engine.ping()


def test_testbed_has_seven_capabilities_and_no_service_is_privileged(project: Project) -> None:
    services = declared(project)
    assert set(services) == set(SERVICES)
    assert not any(service.get("privileged") for service in services.values())
    assert {name: set(service.get("cap_add", ())) for name, service in services.items()} == {
        "testbed": CAPABILITIES,
        "ocs": set(),
        "controller": set(),
        "network": set(),
    }
    assert all(service.get("cap_drop") == ["ALL"] for service in services.values())


def test_image_stays_small(engine: docker.DockerClient, image: str) -> None:
    assert engine.images.get(image).attrs["Size"] < MOST_IMAGE_BYTES


def test_services_gain_no_privilege_and_have_limits(project: Project) -> None:
    for name, service in declared(project).items():
        assert "no-new-privileges" in service["security_opt"], name
        assert not any("seccomp" in option for option in service["security_opt"]), name
        assert 0 < service["pids_limit"] <= 4096, name
        assert 0 < int(service["mem_limit"]) <= 8 << 30, name
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}, name


def test_services_share_an_isolated_network_namespace(project: Project) -> None:
    assert {name: service["network_mode"] for name, service in declared(project).items()} == {
        "testbed": "service:network",
        "ocs": "service:network",
        "controller": "service:network",
        "network": "none",
    }


@pytest.mark.timeout(1800)
def test_image_runs_help_without_capabilities(engine: docker.DockerClient, image: str) -> None:
    output = engine.containers.run(
        image, ["moefabric", "--help"], network_mode="none", cap_drop=["ALL"], remove=True
    )
    assert b"run" in output
    assert b"inspect" in output


@pytest.mark.timeout(1500)
def test_compose_up_testbed_runs_the_prototype_and_exits_with_its_verdict(
    engine: docker.DockerClient, project: Project, image: str
) -> None:
    ran = project.compose("up", "--exit-code-from", "testbed", "testbed", timeout_s=900)
    (testbed,) = engine.containers.list(
        all=True,
        filters={
            "label": [
                f"com.docker.compose.project={project.name}",
                "com.docker.compose.service=testbed",
            ]
        },
    )
    assert testbed.attrs["HostConfig"]["Privileged"] is False
    assert {
        capability.removeprefix("CAP_") for capability in testbed.attrs["HostConfig"]["CapAdd"]
    } == CAPABILITIES
    file = project.folder / "out" / "prototype.json"
    results = finished_run(file, ran.status, ran.text)["results"]
    assert [result["fabric"] for result in results] == ["eps", "mixnet", "mixnet-spill", "static"]
    for result in results:
        integrity = result["integrity"]
        assert integrity["bytes_sent"] == integrity["bytes_received"] > 0
        assert (integrity["corrupt"], integrity["lost_transfers"]) == (0, 0)
        assert len(result["collectives"]) == ITERATIONS * LAYERS * 4
        assert 0 <= result["fidelity"]["cpu_idle_min"] <= 1, "packets lasted for many samples"
    assert "<html" in (project.folder / "out" / "prototype.html").read_text()


@pytest.mark.timeout(300)
def test_compose_exits_with_the_status_of_a_failed_testbed(project: Project, image: str) -> None:
    ran = project.compose(
        "run", "--rm", "-T", "testbed", "moefabric", "run", "no-such.yaml", timeout_s=120
    )
    assert ran.status in {1, 2}, ran.text
    assert "no-such.yaml" in ran.text
