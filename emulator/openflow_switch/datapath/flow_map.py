"""A switch's flows in its hash map, which holds the active and the inactive generation.

A change writes its own keys to the inactive generation, and the keys of the previous change, which
that generation lacks. The cost grows with the change and not with the table.
"""

import errno
import itertools
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from moefabric.core.openflow.match import FlowError
from moefabric.emulator.linux import bpf_assembler as bpf
from moefabric.emulator.linux import bpf_syscalls as bpf_calls
from moefabric.emulator.openflow_switch.datapath import map_layout
from moefabric.emulator.openflow_switch.datapath.interface import Flow, FlowKey

Mask = tuple[int, ...]
_LAST_WORDS: Final = [
    [(number << 1 | generation).to_bytes(4) for number in range(map_layout.MAX_MASKS)]
    for generation in (0, 1)
]
"""The last word of a key, by generation and number of its mask."""
MapPlace = tuple[bytes, int]
"""A match as a key without its last word, and the number of its mask."""


@dataclass(frozen=True)
class FlowChanges:
    """The difference between two tables of flows.

    Attributes:
        put: New and changed flows.
        drop: Keys of removed flows.
        by_identity: The flows of the second table by `id`.
    """

    put: Mapping[FlowKey, Flow]
    drop: Sequence[FlowKey]
    by_identity: Mapping[int, Flow]


def flow_changes(
    before: Mapping[int, Flow], known: Container[FlowKey], flows: Iterable[Flow]
) -> FlowChanges:
    """Return the changes that install flows; the last of flows with equal keys wins.

    Unchanged flows are found by object identity, so that their comparison costs almost nothing.

    Args:
        before: The present flows by `id`.
        known: The keys of the present flows.
        flows: The flows to install.
    """
    by_identity = {id(flow): flow for flow in flows}
    new = [flow for number, flow in by_identity.items() if number not in before]
    drop = {flow.key for number, flow in before.items() if number not in by_identity}
    put = {flow.key: flow for flow in new}
    if len(put) < len(new) or any(key in known and key not in drop for key in put):
        last = {flow.key: flow for flow in by_identity.values()}
        return flow_changes(before, known, last.values())
    return FlowChanges(put, [key for key in drop if key not in put], by_identity)


class StoredFlow(NamedTuple):
    """A flow, its value in the map with its steps, and the index of its counters."""

    flow: Flow
    value: bytes
    counter: int = 0


def _rank(stored: StoredFlow) -> int:
    return stored.flow.rank


class _MaskUse(NamedTuple):
    """A mask in use: its number, its bits as a key, and how many flows of each rank have it."""

    number: int
    bits: bytes
    ranks: Counter[int]


class FlowMap:
    """The flows of one switch, and the keys that the map holds."""

    def __init__(self, fd: int) -> None:
        """Start without flows; the caller closes `fd`, the map's descriptor."""
        self._fd = fd
        self.flows: dict[FlowKey, StoredFlow] = {}
        self._masks: dict[Mask, _MaskUse] = {}
        self._rivals: dict[MapPlace, list[StoredFlow]] = {}
        """For each match, its flows of all priorities."""
        self._stale: tuple[set[MapPlace], ...] = (set(), set())
        self._keys: tuple[set[bytes], ...] = (set(), set())

    def check(self, put: Iterable[Flow], drop: Collection[FlowKey]) -> None:
        """Raise FlowError, naming a flow, if the changed flows would have too many masks."""
        masks = set(self._masks)
        if drop:
            dropped = Counter([key[0].mask for key in drop])
            masks -= {m for m, n in dropped.items() if n == self._masks[m].ranks.total()}
        for flow in put:
            masks.add(flow.match.mask)
            if len(masks) > map_layout.MAX_MASKS:
                limit = f"a switch has at most {map_layout.MAX_MASKS} different masks"
                raise FlowError(f"flow {flow}: one mask too many, {limit}")

    def change(
        self, put: Mapping[FlowKey, StoredFlow], drop: Collection[FlowKey]
    ) -> dict[FlowKey, StoredFlow]:
        """Add and remove flows, without writing to the map yet.

        Returns:
            The flows that were replaced or removed.
        """
        keys = itertools.chain(drop, put)
        before = {key: stored for key in keys if (stored := self.flows.pop(key, None))}
        touched = {*map(self._remove, before.values()), *map(self._add, put.values())}
        self.flows.update(put)
        for generation in self._stale:
            generation.update(touched)
        return before

    def _remove(self, stored: StoredFlow) -> MapPlace:
        flow = stored.flow
        mask = flow.match.mask
        use = self._masks[mask]
        place = map_layout.match_key(flow.match), use.number
        use.ranks[flow.rank] -= 1
        if not use.ranks[flow.rank]:
            del use.ranks[flow.rank]
            if not use.ranks:
                del self._masks[mask]
        if len(rivals := self._rivals[place]) > 1:
            rivals.remove(stored)
        else:
            del self._rivals[place]
        return place

    def _add(self, stored: StoredFlow) -> MapPlace:
        match, rank = stored.flow.match, stored.flow.rank
        if (use := self._masks.get(match.mask)) is None:
            taken = {use.number for use in self._masks.values()}
            number = next(number for number in range(map_layout.MAX_MASKS) if number not in taken)
            use = _MaskUse(number, map_layout.mask_key(match.mask), Counter())
            self._masks[match.mask] = use
        use.ranks[rank] += 1
        place = map_layout.match_key(match), use.number
        self._rivals.setdefault(place, []).append(stored)
        return place

    def masks(self, generation: int) -> bytes:
        """Return all masks of a generation in the order of the search."""
        uses = self._masks.values()
        return map_layout.packed_masks(
            {use.bits + _LAST_WORDS[generation][use.number]: max(use.ranks) for use in uses}
        )

    def write(self, generation: int) -> None:
        """Write the flows to a generation that isn't active.

        Raises:
            BpfError: If the kernel refuses. The generation may lack some flows then.
        """
        stale, keys = self._stale[generation], self._keys[generation]
        put: dict[bytes, bytes] = {}
        delete: list[bytes] = []
        words = _LAST_WORDS[generation]
        for bits, number in stale:
            key = bits + words[number]
            if rivals := self._rivals.get((bits, number)):
                first, *others = rivals
                put[key] = (max(rivals, key=_rank) if others else first).value
            elif key in keys:
                delete.append(key)
        bpf_calls.delete_from_map(self._fd, delete)
        keys.difference_update(delete)
        keys.update(put)
        try:
            bpf_calls.update_map(self._fd, put)
        except bpf.BpfError:
            keys.difference_update(put)
            for key in put:  # the kernel doesn't report how many it wrote
                bpf_calls.delete_from_map(self._fd, [key], ignored_errno=errno.ENOENT)
            raise
        stale.clear()
