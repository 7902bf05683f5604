"""A hundred thousand invalid inputs per protocol: the process of a switch survives unchanged."""

import contextlib
import itertools
import os
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from moefabric.config.plugins import OCS_DIALECTS, ocs_dialects, plugin_reference
from moefabric.emulator.crossbar.bpf_crossbar import BpfCrossbar
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.ocs.fd_handoff import listen_in_namespace
from tests.bench.recording import record
from tests.support.ocs_fuzz import TL1_LOG_IN, request, restconf_inputs, scpi_inputs, tl1_inputs
from tests.support.ocs_process import ocs_process

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(900)]

INPUTS, WARM_UP = 100_000, 20_000
GROWTH_BYTES = 4 << 20
LIT = {1: 14, 2: 13}
REPLIES = (b" COMPLD", b" DENY", b"HTTP/1.1 2", b"HTTP/1.1 4", b"HTTP/1.1 500", b"HTTP/1.1 501")
"""Parts of replies that are counted."""
QUERIES: dict[str, tuple[bytes, bytes]] = {
    "scpi": (b":oxc:swit:conn:stat?\n", b"(@1,2),(@14,13)\n"),
    "tl1": (TL1_LOG_IN + b"RTRV-PATCH:::2:;", b'   "1,14"\r\n   "2,13"\r\n;'),
    "restconf": (
        request(b"GET", b"/api/data/cross-connects"),
        b'{"pair":[{"ingress":1,"egress":14},{"ingress":2,"egress":13}]}',
    ),
}
"""A query for the cross-connects, and the end of its reply."""


class ServedOcs:
    """A process that serves a switch of 12 ports with two lit cross-connects."""

    def __init__(self, folder: Path, resources: ExitStack) -> None:
        crossbar = BpfCrossbar.create(Ports(12))
        self.crossbar = resources.enter_context(contextlib.closing(crossbar))
        crossbar.load(dict.fromkeys(LIT.items(), 0))
        listeners = {
            name: resources.enter_context(listen_in_namespace(None, "127.0.0.1", 0))
            for name in ocs_dialects()
        }
        self.addresses = {name: sock.getsockname() for name, sock in listeners.items()}
        facts = {
            "ports": 12,
            "profile": {"settle": {"fixed_ns": 0}},
            "serial": "1",
            "listening": {name: plugin_reference(OCS_DIALECTS, name) for name in listeners},
        }
        fds = [crossbar.fd, *(listener.fileno() for listener in listeners.values())]
        self.process = resources.enter_context(ocs_process(folder, facts, fds))

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def feed(self, front_end: str, inputs: list[bytes]) -> Counter[bytes]:
        """Send inputs as one client, read all replies, and count parts of them."""
        counts: Counter[bytes] = Counter()
        address = self.addresses[front_end]
        # Some clients are disconnected before they have sent everything.
        with socket.create_connection(address, timeout=30) as client, contextlib.suppress(OSError):
            for data in inputs:
                client.sendall(data)
                if select.select([client], [], [], 0)[0]:
                    counts.update(_count(client.recv(1 << 16)))
            client.shutdown(socket.SHUT_WR)
            while data := client.recv(1 << 16):
                counts.update(_count(data))
        return counts

    def check_query(self, front_end: str) -> None:
        """Assert that a new client gets the cross-connects."""
        query, expected = QUERIES[front_end]
        reply = b""
        with socket.create_connection(self.addresses[front_end], timeout=30) as client:
            client.sendall(query)
            while expected not in reply:
                data = client.recv(1 << 16)
                assert data, f"closed after {reply!r}"
                reply += data


def _count(data: bytes) -> dict[bytes, int]:
    return {part: data.count(part) for part in REPLIES}


@pytest.mark.parametrize(
    ("front_end", "inputs", "inputs_per_client"),
    [
        pytest.param("scpi", scpi_inputs, 500, id="scpi"),
        pytest.param("tl1", tl1_inputs, 250, id="tl1"),
        # A client that sends invalid HTTP is disconnected.
        pytest.param("restconf", restconf_inputs, 1, id="restconf"),
    ],
)
def test_process_survives_hundred_thousand_invalid_inputs(
    tmp_path: Path,
    front_end: str,
    inputs: Callable[[int, int], Iterator[bytes]],
    inputs_per_client: int,
) -> None:
    with ExitStack() as resources:
        ocs = ServedOcs(tmp_path, resources)
        source, counts = inputs(20260101, INPUTS), Counter[bytes]()
        before, start = 0, time.monotonic()
        batches = iter(lambda: list(itertools.islice(source, inputs_per_client)), [])
        for turn, batch in enumerate(batches):
            if turn == WARM_UP // inputs_per_client:
                before = ocs.resident_bytes
            counts.update(ocs.feed(front_end, batch))
        for name in QUERIES:
            ocs.check_query(name)
        growth, duration = ocs.resident_bytes - before, time.monotonic() - start
        assert ocs.process.poll() is None
        lit = dict(ocs.crossbar.cross_connects().keys())
    summary = ", ".join(f"{n} x {part.decode().strip()}" for part, n in counts.items() if n)
    print(
        f"\n{front_end}: {INPUTS} inputs in {duration:.0f} s; "
        f"memory grew by {growth / 1024:.0f} kB; {summary}"
    )
    name = f"growth of a switch's memory over {INPUTS:,} invalid inputs: {front_end}"
    record(name, "MB", growth / 1e6, at_most=GROWTH_BYTES / 1e6)
    assert lit == LIT
    assert counts[b"HTTP/1.1 500"] == 0
    assert growth < GROWTH_BYTES
