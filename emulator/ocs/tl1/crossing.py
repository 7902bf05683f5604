"""TL1 commands for cross-connects, which it calls patches."""

from emulator.ocs.matching import RefusedError
from emulator.ocs.tl1.done import Caller, Done
from emulator.ocs.tl1.frames import quoted
from emulator.ocs.tl1.parameters import port_pairs, ports
from emulator.ocs.tl1.words import Command, PartlyError


def enter(caller: Caller, command: Command) -> Done:
    """`ENT-PATCH::1,9:c:;`, `ENT-PATCH::1&2,9&10:c:;`: all of them or none, unless the mirrors fail half-way."""
    store = caller.store
    pairs = port_pairs(command.aid, store.ports.input_numbers, store.ports.output_numbers)
    before = store.version
    try:
        store.add(pairs)
    except RefusedError as refused:
        if store.version == before:
            raise
        made = tuple(quoted(f"{p},{q}") for p, q in pairs if store.connects.joined.get(p) == q)
        raise PartlyError(store.profile.tl1.codes[refused.kind.value], str(refused), made) from refused
    return Done(settles=True)


def delete(caller: Caller, command: Command) -> Done:
    """`DLT-PATCH::1&2:c:;` by inputs or outputs; `DLT-PATCH::ALL:c:;`, or without ports, for all."""
    if command.aid.plain.upper() in ("", "ALL"):
        caller.store.clear()
    else:
        caller.store.sub_ports(ports(command.aid, caller.store.all_ports))
    return Done(settles=True)


def retrieve(caller: Caller, command: Command) -> Done:
    """`RTRV-PATCH:::c:;`: `"1,9"` for each; of ports that are named, those that are joined, in the order in which they are named."""
    found = (caller.store.pair_of(port) for port in ports(command.aid, caller.store.all_ports))
    pairs = dict.fromkeys(pair for pair in found if pair is not None)
    return Done(tuple(quoted(f"{p},{q}") for p, q in pairs))
