"""A switch's flows in its hash map, where two generations lie: what is in force, and what the next change is written to.

A change touches few keys. Those are what the generation in force lacks against the one before, so that the next change
writes them too, and costs as much as it is large, however large the table is.
"""

import errno
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from emulator import bpf, bpf_calls
from emulator.switch.errors import FlowError
from emulator.switch.flow import Flow, FlowKey
from emulator.switch.layout import KEY_TABLE, MASKS, key_of, mask_of, packed_masks

Mask = tuple[int, ...]


Place = tuple[bytes, int]
"""A match as bytes, and the number of its mask: where flows are in either generation."""


class Written(NamedTuple):
    """A flow as the map holds it: what happens to its packets, and where they are counted, are in `value`."""

    flow: Flow
    value: bytes


class _MaskUse:
    """A mask that some flows have: its number, and how many flows of each rank."""

    def __init__(self, number: int, mask: Mask) -> None:
        self.number = number
        self.bits = mask_of(mask)[:KEY_TABLE]
        self.ranks: Counter[int] = Counter()

    def entry(self, generation: int) -> tuple[bytes, int]:
        return self.bits + _word(self.number, generation), max(self.ranks)


class FlowMap:
    """The flows of one switch, by their keys, and what of them lies in the map behind `fd`, which stays the caller's."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._flows: dict[FlowKey, Written] = {}
        self._masks: dict[Mask, _MaskUse] = {}
        self._rivals: dict[Place, list[Written]] = {}
        """All flows of one match, of any priority."""
        self._stale: tuple[set[Place], ...] = (set(), set())
        self._lies: tuple[set[bytes], ...] = (set(), set())

    def check(self, put: Iterable[Flow], drop: Collection[FlowKey]) -> None:
        """FlowError, naming the flow, where the masks of the flows after this change are too many."""
        left = {mask: use.ranks.total() for mask, use in self._masks.items()}
        for name in drop:
            left[name[0].mask] -= 1
        taken = {mask for mask, flows in left.items() if flows}
        for flow in put:
            taken.add(flow.match.mask)
            if len(taken) > MASKS:
                raise FlowError(
                    f"flow {flow}: one mask too many, a switch finds flows under {MASKS} different masks"
                )

    def change(self, put: Mapping[FlowKey, Written], drop: Collection[FlowKey]) -> dict[FlowKey, Written]:
        """Have these flows instead of those, and give what they replace. Nothing is written yet."""
        names = (name for some in (drop, put) for name in some)
        before = {name: held for name in names if (held := self._flows.pop(name, None))}
        touched: set[Place] = set()
        for written in before.values():
            touched.add(self._take(written))
        for written in put.values():
            touched.add(self._give(written))
        self._flows.update(put)
        for generation in self._stale:
            generation.update(touched)
        return before

    def _take(self, written: Written) -> Place:
        flow = written.flow
        mask = flow.match.mask
        use = self._masks[mask]
        place = key_of(flow.match)[:KEY_TABLE], use.number
        use.ranks[flow.rank] -= 1
        if not use.ranks[flow.rank]:
            del use.ranks[flow.rank]
            if not use.ranks:
                del self._masks[mask]
        if len(rivals := self._rivals[place]) > 1:
            rivals.remove(written)
        else:
            del self._rivals[place]
        return place

    def _give(self, written: Written) -> Place:
        match, rank = written.flow.match, written.flow.rank
        if (use := self._masks.get(match.mask)) is None:
            taken = {use.number for use in self._masks.values()}
            number = next(number for number in range(MASKS) if number not in taken)
            use = self._masks[match.mask] = _MaskUse(number, match.mask)
        use.ranks[rank] += 1
        place = key_of(match)[:KEY_TABLE], use.number
        self._rivals.setdefault(place, []).append(written)
        return place

    def masks(self, generation: int) -> bytes:
        """All masks as a generation's search goes through them."""
        return packed_masks(dict(use.entry(generation) for use in self._masks.values()))

    def write(self, generation: int) -> None:
        """Make the generation, which is not in force, that of the flows as they are now. BpfError: some of it may be missing there."""
        stale, lies = self._stale[generation], self._lies[generation]
        put: dict[bytes, bytes] = {}
        delete: list[bytes] = []
        words = [_word(number, generation) for number in range(MASKS)]
        for bits, number in stale:
            key = bits + words[number]
            if rivals := self._rivals.get((bits, number)):
                first = rivals[0] if len(rivals) == 1 else max(rivals, key=lambda held: held.flow.rank)
                put[key] = first.value
            elif key in lies:
                delete.append(key)
        bpf_calls.delete_from_map(self._fd, delete)
        lies.difference_update(delete)
        lies.update(put)
        try:
            bpf_calls.put_in_map(self._fd, put)
        except bpf.BpfError:
            lies.difference_update(put)
            for key in put:  # how many have come in before the fault nobody says
                bpf_calls.delete_from_map(self._fd, [key], spared=errno.ENOENT)
            raise
        stale.clear()


def _word(number: int, generation: int) -> bytes:
    return (number << 1 | generation).to_bytes(4)
