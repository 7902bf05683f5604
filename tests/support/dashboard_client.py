"""A client of the dashboard without a browser: its state, and commands of its page."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from moefabric.runtime.waiting import Deadline

WAIT_S = 60.0
Topics = dict[str, Any]


class DashboardClient:
    """The topics of a fabric as the dashboard streams them.

    Args:
        fabric: Name of the fabric.
        link: Link of the page, with its token.
    """

    def __init__(self, fabric: str, link: str) -> None:
        self._fabric = fabric
        self._site, _, token = link.partition("/#token=")
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._messages = self._read(self._request(f"/api/stream?fabric={fabric}"))
        self.topics: Topics = {}

    @classmethod
    @contextmanager
    def of(cls, fabric: str) -> Iterator[Self]:
        """Run the dashboard in the caller's network, and yield its client."""
        argv = [sys.executable, "-m", "moefabric", "dashboard", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield cls(fabric, process.stdout.readline().removeprefix("dashboard: ").strip())
            finally:
                process.kill()

    def post(self, command: str, **document: object) -> None:
        """Give a command of the page."""
        self._request(f"/api/fabrics/{self._fabric}/{command}", json.dumps(document)).close()

    def wait_for(self, holds: Callable[[Topics], bool]) -> Topics:
        """Return the topics once they fulfil a condition."""
        deadline = Deadline.after(WAIT_S)
        while not holds(self.topics):
            assert deadline.remaining_s, f"not within {WAIT_S:g} s; topics: {self.topics}"
            topic, value = next(self._messages)
            self.topics[topic] = value
        return dict(self.topics)

    def _request(self, path: str, text: str | None = None) -> Any:
        data = None if text is None else text.encode()
        request = urllib.request.Request(self._site + path, data, self._headers)
        return urllib.request.urlopen(request, timeout=WAIT_S)

    @staticmethod
    def _read(lines: Any) -> Iterator[tuple[str, Any]]:
        topic = ""
        for line in lines:
            name, _, text = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                topic = text
            elif name == "data":
                yield topic, json.loads(text)
            elif topic and not name:
                yield "", None  # a comment, while nothing changes


def without_carrier(topics: Topics) -> list[str]:
    """Return the NICs that are down."""
    servers = topics["hardware"]["servers"]
    return [nic["name"] for one in servers for nic in one["nics"] if not nic["carrier"]]


def watch(fabric: str, nic: str, server: str, address: str) -> None:
    """Print what the dashboard shows first, with load and with a failed NIC, as JSON.

    Args:
        fabric: The fabric.
        nic: An electrical NIC, which carries packets and fails.
        server: Its server.
        address: Address of a server of another region, which receives packets.
    """
    with DashboardClient.of(fabric) as client:
        needed = {"fabric", "hardware", "circuits", "failures"}
        first = client.wait_for(lambda topics: needed <= topics.keys())
        nics = [n for r in first["fabric"]["regions"] for s in r["servers"] for n in s["nics"]]
        ping = ["ping", "-q", "-i", "0.01", "-s", "1400", "-w", str(int(WAIT_S)), address]
        argv = [sys.executable, "-m", "moefabric", "exec", server, "--", *ping]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as sender:
            row = nics.index(nic)
            loaded = client.wait_for(
                lambda topics: "load" in topics and topics["load"]["sent"][row]
            )
            sender.terminate()
        client.post("fault", kind="nic", what=[nic])
        failed = client.wait_for(lambda topics: nic in without_carrier(topics))
        client.post("clear", kind="nic", what=[nic])
        client.wait_for(lambda topics: not topics["failures"] and not without_carrier(topics))
    load = dict(zip(nics, loaded["load"]["sent"], strict=True))
    json.dump({"first": first, "load": load, "failures": failed["failures"]}, sys.stdout)
