"""Executes a flow's actions: which copies of a packet leave the switch, by which ports."""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from moefabric.core.openflow.actions import Action, Output, SetField, ToGroup
from moefabric.core.openflow.constants import WHOLE_FRAME, GroupType, PortNumber
from moefabric.core.openflow.match import FlowError
from moefabric.core.openflow.messages import Bucket
from moefabric.emulator.openflow_switch.datapath.interface import Flow, Group, Groups, Ports

SLOTS: Final = 32
"""Number of slots: equal parts into which a select group divides its packets by a hash of fields.
The weights of buckets are rounded to slots."""

# Multipliers of the hash; the program in the kernel computes the same hash (`switch_program`).
MIX: Final = 0x9E3779B97F4A7C15
PRIMES: Final = {"ipv4_src": 0x45EBCA6B, "ipv4_dst": 0x42B2AE35, "ip_proto": 0x27D4EB2F}
PORTS_PRIME: Final = 0x165667B1
MAC_PRIMES: Final = (0x1B873593, 0x38B34AE5, 0x5BD1E995, 0x2127599B)
"""Multipliers of the destination MAC's first 32 and last 16 bits, and of the source MAC's first 16
and last 32 bits."""
IPV6_PRIMES: Final = tuple(0x2545F491 * (2 * place + 1) & 0x7FFFFFFF | 1 for place in range(8))
"""Multipliers of each 32 bits of the source address, then of the destination address."""
FINAL_SHIFT: Final = 64 - SLOTS.bit_length() + 1


def select_slot(packet: Mapping[str, int]) -> int:
    """Return the slot of a packet by its MAC addresses and five-tuple (IPv6: addresses only).

    All packets of a connection have the same slot.

    Args:
        packet: Fields as `packet_fields` returns them.
    """
    mixed = (packet["ipv4_src"] | packet["arp_spa"]) * PRIMES["ipv4_src"]
    mixed += (packet["ipv4_dst"] | packet["arp_tpa"]) * PRIMES["ipv4_dst"]
    mixed += (packet["ip_proto"] | packet["arp_op"]) * PRIMES["ip_proto"]
    mixed += (packet["tp_src"] << 16 | packet["tp_dst"]) * PORTS_PRIME
    destination, source = packet["eth_dst"], packet["eth_src"]
    macs = (destination >> 16, destination & 0xFFFF, source >> 32, source & 0xFFFFFFFF)
    mixed += sum(word * prime for word, prime in zip(macs, MAC_PRIMES, strict=True))
    ipv6 = packet.get("ipv6", 0)
    words = (ipv6 >> 32 * (7 - place) & 0xFFFFFFFF for place in range(8))
    mixed += sum(word * prime for word, prime in zip(words, IPV6_PRIMES, strict=True))
    return (mixed * MIX & (1 << 64) - 1) >> FINAL_SHIFT


def slot_buckets(weights: Sequence[int]) -> tuple[int, ...]:
    """Return the index of each slot's bucket, or nothing if all weights are 0.

    Slots are shared in proportion to the weights by the largest remainders; ties go to the earlier
    bucket.
    """
    total = sum(weights)
    if total <= 0:
        return ()
    slots = [weight * SLOTS // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(weights[i] * SLOTS % total), i))
    for i in by_remainder[: SLOTS - sum(slots)]:
        slots[i] += 1
    return tuple(itertools.chain.from_iterable([i] * count for i, count in enumerate(slots)))


def ordered_actions(actions: Iterable[Action]) -> tuple[Action, ...]:
    """Return an action set in its order of execution (OpenFlow 1.3.5, 5.10).

    The last value set for each field comes first, then the group, or the output if there is no
    group.
    """
    fields, outputs = dict[str, Action](), dict[type, Action]()
    for action in actions:
        if isinstance(action, SetField):
            fields[action.name] = action
        else:
            outputs[type(action)] = action
    last = outputs.get(ToGroup) or outputs.get(Output)
    return (*fields.values(), *((last,) if last else ()))


@dataclass(frozen=True)
class Emission:
    """A copy of a packet that leaves the switch.

    `rewrites` are the fields set on the copy, in the order of their names. `max_len` limits the
    bytes sent to the controller.
    """

    port: int
    rewrites: tuple[tuple[str, int], ...] = ()
    max_len: int = WHOLE_FRAME

    def output_ports(self, in_port: int, ports: Collection[int]) -> list[int]:
        """Return the ports where a packet from `in_port` leaves; none for a controller copy."""
        if self.port == PortNumber.ALL:
            return [number for number in sorted(ports) if number != in_port]
        if self.port == PortNumber.IN_PORT:
            return [in_port] if in_port in ports else []
        if self.port in ports and self.port != in_port:
            return [self.port]
        return []


def emissions(flow: Flow, groups: Groups, slot: int, ports: Ports) -> tuple[Emission, ...]:
    """Return the copies of a packet that leave, in order.

    Args:
        flow: The flow that the packet matches.
        groups: The groups of the switch by number.
        slot: The packet's slot.
        ports: The ports of the switch by number.

    Raises:
        FlowError: Names the flow if a group doesn't exist or sends packets to itself.
    """

    def execute(
        actions: Sequence[Action], rewrites: Mapping[str, int], within: tuple[int, ...]
    ) -> Iterator[Emission]:
        fields = dict(rewrites)
        for action in actions:
            match action:
                case SetField(name, value):
                    fields[name] = value
                case Output(port, max_len):
                    yield Emission(port, tuple(sorted(fields.items())), max_len)
                case ToGroup(number):
                    if number not in groups:
                        raise FlowError(f"no group {number}")
                    if number in within:
                        raise FlowError(f"group {number} goes through itself")
                    for bucket in _chosen_buckets(groups[number], slot, ports):
                        ordered = ordered_actions(bucket.actions)
                        yield from execute(ordered, fields, (*within, number))

    try:
        return tuple(execute(flow.actions, {}, ()))
    except FlowError as fault:
        raise FlowError(f"flow {flow}: {fault}") from None


def _chosen_buckets(group: Group, slot: int, ports: Ports) -> Sequence[Bucket]:
    """Return the buckets that a packet visits."""
    match group.kind:
        case GroupType.SELECT:
            by_slot = slot_buckets([bucket.weight for bucket in group.buckets])
            return (group.buckets[by_slot[slot]],) if by_slot else ()
        case GroupType.FAST_FAILOVER:
            up = {PortNumber.ANY, *(number for number, port in ports.items() if port.up)}
            return [bucket for bucket in group.buckets if bucket.watch_port in up][:1]
        case _:
            return group.buckets
