"""Which agents share a process."""

import resource
from collections import Counter
from typing import Any

import pytest

from moefabric.api.fabric import EmulatedFabric
from moefabric.core.server_container import ExistingContainer
from moefabric.emulator.fabric import lifecycle
from moefabric.runtime.run_directory import FabricWiring, ManagementNetwork, RunDirectory
from moefabric.testbed import fabric_processes
from moefabric.testbed.testbed import start_fabric
from tests.support.fabrics import fabric
from tests.support.paths import REPOSITORY


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_processes, "usable_cores", lambda: 2)


def wiring(regions: int, servers: int, **settings: Any) -> FabricWiring:
    made = fabric(regions=(servers,) * regions)
    return FabricWiring(made, ManagementNetwork.example_for(made), **settings)


@pytest.mark.parametrize(("regions", "servers"), [(4, 4), (3, 3), (1, 2)])
def test_servers_of_a_region_are_spread_over_all_cores(regions: int, servers: int) -> None:
    wired = wiring(regions, servers)
    hosts = fabric_processes.agent_hosts(wired)
    assert set(hosts) == {*wired.fabric.servers}
    for group in wired.fabric.ep_groups.values():
        counts = Counter(hosts[server] for server in group)
        assert max(counts.values()) - min(counts.values()) <= 1
        assert set(counts) == {"agents-0", "agents-1"}


def test_descriptors_of_many_agents_need_more_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    wired = wiring(4, 4)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (600, 600))
    hosts = Counter(fabric_processes.agent_hosts(wired).values())
    assert len(hosts) > 2
    needs = 2 * max(hosts.values()) * fabric_processes.RESERVE
    assert needs <= 600


def test_containers_and_separate_agents_share_nothing() -> None:
    wired = wiring(1, 4, containers={"s1": ExistingContainer("mine")})
    assert set(fabric_processes.agent_hosts(wired)) == {"s0", "s2", "s3"}
    specs = fabric_processes.fabric_processes(wired, RunDirectory.of_fabric("x"))
    alone = [spec.name for spec in specs if spec.name.startswith("agent") and not spec.host]
    assert alone == ["agent-s1"]
    assert fabric_processes.agent_hosts(wiring(1, 4, shared_agents=False)) == {}


@pytest.mark.parametrize("agents", ["shared", "separate"])
def test_fabric_file_chooses(monkeypatch: pytest.MonkeyPatch, agents: str) -> None:
    chosen = []
    monkeypatch.setattr(lifecycle, "up", lambda wanted, *_, **__: chosen.append(wanted))
    file = EmulatedFabric.load(REPOSITORY / "examples" / "fabric.yaml", [f"agents={agents}"])
    start_fabric(file.spec.build(), file.spec)
    assert [wanted.shared_agents for wanted in chosen] == [agents == "shared"]
