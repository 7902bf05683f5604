"""Classifiers in BPF that take all frames which interfaces receive.

The interfaces share a block of filters (tc(8)) with one filter. The kernel walks a list of all
blocks of the machine for each new block, and waits for all processors for each program that tcx
attaches. A classifier stays until its interface ends, also without the process that attached it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from moefabric.emulator.linux import netlink

_BLOCKS: Final = 1 << 30
"""Numbers of our blocks begin here; users of tc give theirs small ones."""


def classify(program: int, name: str, places: Mapping[int, str]) -> None:
    """Run a loaded classifier on interfaces, in place of the one that runs there.

    Call it in the interfaces' namespace; it needs CAP_NET_ADMIN.

    Args:
        program: Descriptor of the classifier.
        name: Its name, for `tc filter show`.
        places: By index of an interface, the part of the fabric that error messages name.

    Raises:
        FabricError: Names the interfaces that the kernel refuses.
    """
    block = _BLOCKS + _program_id(program)
    requests = list[netlink.Request]()
    for index, place in places.items():
        requests.append(netlink.delete_ingress(place, index))
        requests.append(netlink.ingress(place, index, block))
    for place in list(places.values())[:1]:
        requests.append(netlink.block_program(place, block, program, name))
    netlink.execute(requests)


def _program_id(program: int) -> int:
    """Return the number of a program, which no other one has (proc(5), fdinfo)."""
    lines = Path(f"/proc/self/fdinfo/{program}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("prog_id:"))
