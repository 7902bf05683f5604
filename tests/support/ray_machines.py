"""A Ray cluster whose nodes are machines made of namespaces."""

import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.support.machine_namespaces import NamespaceMachine

PORT: Final = 6379
_RAY: Final = str(Path(sys.executable).with_name("ray"))
_STORE_BYTES: Final = 80_000_000
_SETTINGS: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}
"""A light cluster for those who have its token."""


@contextmanager
def ray_cluster(machines: Mapping[str, NamespaceMachine]) -> Iterator[dict[str, NamespaceMachine]]:
    """Start Ray on machines, the head on the first; yield them with its address as RAY_ADDRESS.

    Each machine, by its name, claims to have eight cores. Ray ends with the machines.
    """
    head = next(iter(machines.values()))
    address = f"{head.address}:{PORT}"
    members = {}
    for name, machine in machines.items():
        first = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        where = first if machine is head else [f"--address={address}"]
        member = replace(machine, env={**machine.env, **_SETTINGS, "RAY_ADDRESS": address})
        member.run(
            *(_RAY, "start", *where, f"--node-ip-address={machine.address}"),
            *("--num-cpus=8", "--memory=4000000000"),
            *(f"--object-store-memory={_STORE_BYTES}", "--disable-usage-stats"),
            f"--temp-dir={machine.folder / 'ray'}",
            timeout_s=120,
        )
        members[name] = member
    yield members
