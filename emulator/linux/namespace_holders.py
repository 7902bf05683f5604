"""Network, mount and UTS namespaces of nodes; a thread per node holds them open."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

from moefabric.core.errors import FabricError
from moefabric.emulator.linux.marked_processes import mark_environment
from moefabric.runtime.processes import adopt_orphans
from moefabric.runtime.waiting import Deadline

_PROGRAM: Final = str(Path(__file__).with_name("namespace_holder.py"))


class NamespaceHolders(AbstractContextManager["NamespaceHolders"]):
    """Namespaces of nodes, made in the background; the end of the context removes them."""

    def __init__(
        self,
        nodes: Sequence[str],
        fabric: str,
        hosts: Path | None = None,
        networks: Mapping[str, str] | None = None,
    ) -> None:
        """Start the holder of the nodes.

        Args:
            nodes: names of the nodes, which become their host names.
            fabric: the fabric whose mark the holder has in its environment.
            hosts: a file that all nodes see as /etc/hosts.
            networks: paths of existing network namespaces, by node; the others get new ones.
        """
        self._nodes = tuple(nodes)
        paths = {node: f"={path}" for node, path in (networks or {}).items()}
        adopt_orphans()
        named = [node + paths.get(node, "") for node in nodes]
        self._starter = subprocess.Popen(
            [sys.executable, "-S", "-E", _PROGRAM, str(hosts or ""), *named],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **mark_environment(fabric)},
            start_new_session=True,
        )

    def pids(self, deadline: Deadline) -> dict[str, int]:
        """Wait for the namespaces; return by node the thread that holds them, as a pid.

        Raises:
            FabricError: if a namespace can't be made, or after the deadline.
        """
        try:
            output, _ = self._starter.communicate(timeout=deadline.remaining_s)
        except subprocess.TimeoutExpired:
            raise FabricError("the nodes' namespaces were not ready in time") from None
        reports = dict(line.split(" ", 1) for line in output.splitlines())
        for node, report in reports.items():
            if not report.isdecimal():
                raise FabricError(f"{node}: no namespaces: {report}; run as root (CAP_SYS_ADMIN)")
        if missing := [node for node in self._nodes if node not in reports]:
            raise FabricError(f"{', '.join(missing)}: no namespaces; see the fabric's log")
        return {node: int(reports[node]) for node in self._nodes}

    def __exit__(self, *_: object) -> None:
        """End the holder and wait for its end; the kernel then removes the namespaces."""
        with suppress(ChildProcessError):  # without children, the group's number may be another's
            os.waitid(os.P_PGID, self._starter.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            os.killpg(self._starter.pid, signal.SIGKILL)
        self._starter.wait()
        if self._starter.stdout is not None:
            self._starter.stdout.close()
        with suppress(ChildProcessError):
            while True:
                os.waitid(os.P_PGID, self._starter.pid, os.WEXITED)
