"""Containers of Docker Compose: what their files give them."""

from typing import Any

import pytest
import yaml

from tests.support.paths import REPOSITORY

FILES = ("docker-compose.yml", "examples/cluster/docker-compose.yml")


def services(file: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((REPOSITORY / file).read_text())["services"]
    return found


@pytest.mark.parametrize("file", FILES)
def test_each_service_has_limits_and_no_way_to_more(file: str) -> None:
    for name, service in services(file).items():
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges" in service["security_opt"], name
        assert service.keys() >= {"mem_limit", "pids_limit"}, name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
        assert "privileged" not in service, name


@pytest.mark.parametrize("file", [*FILES, "examples/containers/compose.yaml"])
def test_only_services_with_capabilities_are_root(file: str) -> None:
    for name, service in services(file).items():
        is_root = service.get("user", "0:0").partition(":")[0] in {"0", "root"}
        assert is_root == bool(service.get("cap_add")), name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges" in service["security_opt"], name


def test_fabrics_of_the_testbed_belong_to_the_user_of_ocs_and_controller() -> None:
    compose = services("docker-compose.yml")
    owner = compose["testbed"]["environment"]["SUDO_UID"]
    assert [compose[name]["user"] for name in ("ocs", "controller")] == [f"{owner}:{owner}"] * 2
    assert "CHOWN" in compose["testbed"]["cap_add"]


def test_cluster_demands_a_token_and_has_no_way_out() -> None:
    file = "examples/cluster/docker-compose.yml"
    assert yaml.safe_load((REPOSITORY / file).read_text())["networks"] == {
        "default": {"internal": True}
    }
    head, worker = (services(file)[name] for name in ("head", "worker"))
    for service in (head, worker):
        assert service["environment"]["RAY_AUTH_MODE"] == "token"
        assert service["environment"]["RAY_AUTH_TOKEN_PATH"] == "/token/token"
    assert (head["volumes"], worker["volumes"]) == (["token:/token"], ["token:/token:ro"])
    assert "secrets.token_hex(32)" in " ".join(head["command"])
