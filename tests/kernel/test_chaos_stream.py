"""Stream that passes by the faults of `make chaos`."""

from functools import partial

import pytest

from moefabric.emulator.linux import namespaces
from moefabric.runtime.waiting import Deadline
from tests.chaos.stream import Stream
from tests.support.namespaces import must

pytestmark = pytest.mark.ovs
_ENOUGH = 5


def test_stream_counts_what_does_not_arrive() -> None:
    with namespaces.held_new() as path:
        set_loopback = partial(must, "ip", "link", "set", "lo")
        namespaces.run_in(path, partial(set_loopback, "up"))
        with Stream(path, path, "127.0.0.1") as stream:
            Deadline.after(5).wait_for(lambda: stream.received >= _ENOUGH, "the stream")
            assert stream.lost <= 1  # under way
            namespaces.run_in(path, partial(set_loopback, "down"))
            Deadline.after(5).wait_for(lambda: stream.lost >= _ENOUGH, "the loss")
