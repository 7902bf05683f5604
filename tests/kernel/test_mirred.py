"""The crossbar of tc filters: what the contract of all crossbars doesn't say."""

import pytest

from emulator.light import Light, Ports
from emulator.mirred import MirredCrossbar
from moefabric.errors import FabricError
from tests.kernel.optical_bench import Wires, missing_for_kernel_tests

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
]


def test_the_next_holder_finds_what_is_lit() -> None:
    with Wires(3) as wires:
        first = wires.mirred_crossbar()
        first.load({1: Light(5, 0), 2: Light(4, 0)})
        first.close()
        second = wires.mirred_again()
        assert second.show() == {1: Light(5, 0), 2: Light(4, 0)}
        second.load({3: Light(4, 0)})
        assert wires.mirred_again().show() == {3: Light(4, 0)}


def test_an_interface_that_is_not_there_is_a_fault() -> None:
    with Wires(1) as wires:
        wires.plug_in()
        with pytest.raises(FabricError, match="crossbar of filters: "):
            MirredCrossbar(Ports(1, 1), {1: 999}, wires.path(wires.ocs))


def test_a_namespace_that_is_not_there_is_a_fault() -> None:
    with pytest.raises(FabricError, match="No such file or directory"):
        MirredCrossbar(Ports(1, 1), {1: 1}, "/run/netns/absent")
