"""Steps: a flow's actions with its groups resolved, as what leaves the switch by which port and in which dress."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from emulator.switch.errors import FlowError
from emulator.switch.flow import Action, Bucket, Flow, Group, GroupKind, Output, Reserved, SetField, ToGroup
from emulator.switch.seam import Port

SLOTS: Final = 32
"""Into so many equal parts a select group cuts its packets; weights are kept to one of them."""
MIX: Final = 0x9E3779B97F4A7C15
PRIMES: Final = {"ipv4_src": 0x45EBCA6B, "ipv4_dst": 0x42B2AE35, "ip_proto": 0x27D4EB2F}
PORTS_PRIME: Final = 0x165667B1
MAC_PRIMES: Final = (0x1B873593, 0x38B34AE5, 0x5BD1E995, 0x2127599B)
"""For the first 32 bits of the destination's MAC, its last 16, the first 16 of the source's, and its last 32."""
IPV6_PRIMES: Final = tuple(0x2545F491 * (2 * place + 1) & 0x7FFFFFFF | 1 for place in range(8))
"""For each 32 bits of the source's address and the destination's."""
FINAL_SHIFT: Final = 64 - SLOTS.bit_length() + 1


def slot(packet: Mapping[str, int]) -> int:
    """The part, of SLOTS, that a packet falls into by its MAC addresses and five-tuple. Packets of one connection fall together.

    Of IPv6 it is the addresses alone (`ipv6` in `flow.fields`).
    """
    mixed = (packet["ipv4_src"] | packet["arp_spa"]) * PRIMES["ipv4_src"]
    mixed += (packet["ipv4_dst"] | packet["arp_tpa"]) * PRIMES["ipv4_dst"]
    mixed += (packet["ip_proto"] | packet["arp_op"]) * PRIMES["ip_proto"]
    mixed += (packet["tp_src"] << 16 | packet["tp_dst"]) * PORTS_PRIME
    words = [
        packet["eth_dst"] >> 16,
        packet["eth_dst"] & 0xFFFF,
        packet["eth_src"] >> 32,
        packet["eth_src"] & 0xFFFFFFFF,
    ]
    mixed += sum(word * prime for word, prime in zip(words, MAC_PRIMES, strict=True))
    pair = packet.get("ipv6", 0)
    mixed += sum((pair >> 32 * (7 - place) & 0xFFFFFFFF) * prime for place, prime in enumerate(IPV6_PRIMES))
    return (mixed * MIX & (1 << 64) - 1) >> FINAL_SHIFT


def shares(weights: Sequence[int]) -> tuple[int, ...]:
    """Which of these each slot goes to: in proportion to the weights, the largest remainders first, ties to the earlier."""
    total = sum(weights)
    if total <= 0:
        return ()
    whole = [weight * SLOTS // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(weights[i] * SLOTS % total), i))
    for i in by_remainder[: SLOTS - sum(whole)]:
        whole[i] += 1
    return tuple(itertools.chain.from_iterable([i] * times for i, times in enumerate(whole)))


@dataclass(frozen=True)
class Emission:
    """One copy of a packet that leaves: by which port, up to how many bytes (to the controller), with which fields rewritten."""

    port: int | Reserved
    rewritten: tuple[tuple[str, int], ...] = ()
    max_len: int = 0xFFFF


Groups = Mapping[int, Group]
Ports = Mapping[int, Port]


def live(ports: Ports, number: int) -> bool:
    """Whether there is such a port, and it has carrier."""
    return number in ports and ports[number].up


def emissions(flow: Flow, groups: Groups, part: int, is_up: Callable[[int], bool]) -> tuple[Emission, ...]:
    """What leaves of a packet of that flow in that slot, in order. FlowError for a group that isn't there or goes in circles."""
    try:
        return tuple(_emitted(flow.actions, {}, groups, part, is_up, ()))
    except FlowError as fault:
        raise FlowError(f"flow {flow}: {fault}") from None


def uses_select(flow: Flow, groups: Groups) -> bool:
    """Whether a packet's slot matters to this flow."""
    pending = [action.id for action in flow.actions if isinstance(action, ToGroup)]
    seen: set[int] = set()
    while pending:
        if (number := pending.pop()) in seen or number not in groups:
            continue
        seen.add(number)
        if groups[number].kind is GroupKind.SELECT:
            return True
        pending += [a.id for b in groups[number].buckets for a in b.actions if isinstance(a, ToGroup)]
    return False


def _emitted(
    actions: Sequence[Action],
    rewritten: Mapping[str, int],
    groups: Groups,
    part: int,
    is_up: Callable[[int], bool],
    within: tuple[int, ...],
) -> Iterator[Emission]:
    dress = dict(rewritten)
    for action in actions:
        match action:
            case SetField(name, value):
                dress[name] = value
            case Output(port, max_len):
                yield Emission(port, tuple(sorted(dress.items())), max_len)
            case ToGroup(number):
                if number not in groups:
                    raise FlowError(f"no group {number}")
                if number in within:
                    raise FlowError(f"group {number} goes through itself")
                for bucket in chosen(groups[number], part, is_up):
                    yield from _emitted(bucket.actions, dress, groups, part, is_up, (*within, number))


def chosen(group: Group, part: int, is_up: Callable[[int], bool]) -> Sequence[Bucket]:
    """The buckets that a packet in that slot goes through."""
    match group.kind:
        case GroupKind.SELECT:
            by_slot = shares([bucket.weight for bucket in group.buckets])
            return (group.buckets[by_slot[part]],) if by_slot else ()
        case GroupKind.FAST_FAILOVER:
            found = (b for b in group.buckets if b.watch_port is None or is_up(b.watch_port))
            return tuple(itertools.islice(found, 1))
        case _:
            return group.buckets
