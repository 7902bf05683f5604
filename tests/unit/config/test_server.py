"""Servers that are containers: keys of the file and the values they become."""

from pathlib import Path

import pytest
import yaml

from moefabric.config.fabric import FabricSpec
from moefabric.config.loader import fabric_of, load_fabric
from moefabric.core.server_container import ExistingContainer, NewContainer
from moefabric.runtime.run_directory import FabricWiring, ManagementNetwork

KEYS = {
    "fabric": "lab",
    "gpus_per_server": 2,
    "nic_rate": "100Gb/s",
    "nics": {"optical": 1, "electrical": 1},
    "regions": [{"servers": 4}],
    "scale": {"bytes": 1000},
}
NEW = {
    "image": "debian:bookworm-slim",
    "command": ["sleep", "infinity"],
    "cpus": 1.5,
    "memory": "2GB",
    "shared_memory": "256MiB",
    "volumes": ["/data:/data:ro"],
    "environment": {"OMP_NUM_THREADS": "1"},
    "user": "1000:1000",
}
BUILT = NewContainer(
    "debian:bookworm-slim",
    ("sleep", "infinity"),
    1.5,
    2_000_000_000,
    256 * 1024**2,
    ("/data:/data:ro",),
    {"OMP_NUM_THREADS": "1"},
    "1000:1000",
)


def spec(**servers: object) -> FabricSpec:
    return fabric_of(KEYS | {"servers": servers})


def test_containers_are_new_or_existing_ones() -> None:
    containers = spec(s0={"container": NEW}, s3={"container": "gpu-node"}).containers
    assert containers == {"s0": BUILT, "s3": ExistingContainer("gpu-node")}


def test_servers_are_no_containers_by_default() -> None:
    assert spec().containers == {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("./data:/data:ro", "{folder}/data:/data:ro"),
        ("../data:/data", "{parent}/data:/data"),
        ("/data:/data", "/data:/data"),
        ("cache:/data", "cache:/data"),
    ],
)
def test_relative_volumes_start_at_the_folder_of_the_file(
    tmp_path: Path, given: str, expected: str
) -> None:
    container = {"image": "debian", "volumes": [given]}
    file = tmp_path / "fabric.yaml"
    file.write_text(yaml.safe_dump(KEYS | {"servers": {"s0": {"container": container}}}))
    built = load_fabric(file).containers["s0"]
    assert isinstance(built, NewContainer)
    assert built.volumes == (expected.format(folder=tmp_path, parent=tmp_path.parent),)


def test_wiring_file_keeps_containers() -> None:
    containers = spec(s0={"container": NEW}, s3={"container": "gpu-node"}).containers
    wiring = FabricWiring(spec().build(), ManagementNetwork("198.18.0.0/24"), containers=containers)
    assert FabricWiring.from_json(wiring.to_json()) == wiring
