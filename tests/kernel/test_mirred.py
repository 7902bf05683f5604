"""Crossbar of tc filters: behaviour beyond the contract of all crossbars."""

import pytest

from moefabric.core.errors import FabricError
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.crossbar.mirred_crossbar import MirredCrossbar
from tests.kernel.optical_bench import HostNetwork


def test_next_owner_takes_over_cross_connects() -> None:
    with HostNetwork(3) as network:
        first = network.mirred_crossbar()
        first.load({(1, 5): 0, (2, 4): 0})
        first.close()
        second = network.mirred_again()
        assert second.cross_connects() == {(1, 5): 0, (2, 4): 0}
        second.load({(3, 4): 0})
        assert network.mirred_again().cross_connects() == {(3, 4): 0}


def test_missing_interface_is_refused() -> None:
    with HostNetwork(1) as network:
        network.plug_in()
        with pytest.raises(FabricError, match="crossbar of filters: "):
            MirredCrossbar(Ports(1, 1), {1: 999}, network.path(network.ocs))


def test_missing_namespace_is_refused() -> None:
    with pytest.raises(FabricError, match="No such file or directory"):
        MirredCrossbar(Ports(1, 1), {1: 1}, "/run/netns/absent")
