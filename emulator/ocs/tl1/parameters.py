"""What TL1 commands are about: lists of ports, and named parameters. DeniedError tells what is wrong with them."""

import re
from collections.abc import Mapping, Sequence

from emulator.ocs.tl1.words import Command, DeniedError, Word

PORT = re.compile(r"[0-9]{1,5}")
NAMED = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*=(.*)", re.DOTALL)
PORTS_IN_A_LIST = 4096


def invalid_port(text: str) -> DeniedError:
    """The port that isn't one, as the device says it."""
    return DeniedError("IDNV", f"Invalid OXC port: {text}")


def ports(aid: Word, valid: range) -> list[int]:
    """`1&4&10`, `1&&640`, or nothing or `ALL` for all of them."""
    if aid.plain.upper() in ("", "ALL"):
        return list(valid)
    lists = aid.split(",")
    if len(lists) != 1:
        raise DeniedError("IIAC", "Too many parameters")
    return port_list(lists[0], valid)


def named_ports(aid: Word, valid: range) -> list[int]:
    """The same, where a command changes something: all of them have to be asked for by name."""
    if not aid.text.strip():
        raise DeniedError("IIAC", "Too few parameters (0/1)")
    return ports(aid, valid)


def port_pairs(aid: Word, inputs: range, outputs: range) -> list[tuple[int, int]]:
    """`1,9`, `1&2,9&10` or `1&&4,9&&12`: inputs and outputs, element by element."""
    if not aid.text.strip():
        raise DeniedError("IIAC", "Too few parameters (0/2)")
    lists = aid.split(",")
    if len(lists) != 2:
        raise DeniedError(
            "IIAC", f"{'Too few' if len(lists) < 2 else 'Too many'} parameters ({len(lists)}/2)"
        )
    if not all(one.text.strip() for one in lists):
        raise DeniedError("IIAC", "Empty parameters")
    ins, outs = port_list(lists[0], inputs), port_list(lists[1], outputs)
    if len(ins) != len(outs):
        raise DeniedError("IIAC", f"{len(ins)} ports for {len(outs)}")
    return list(zip(ins, outs, strict=True))


def port_list(written: Word, valid: range) -> list[int]:
    """`1&4&10` or `1&&640`."""
    parts = [part.plain for part in written.split("&")]
    found: list[int] = []
    place = 0
    while place < len(parts):
        if place + 2 < len(parts) and not parts[place + 1]:
            found += _span(parts[place], parts[place + 2], valid)
            place += 3
        else:
            found.append(_port(parts[place], valid))
            place += 1
        if len(found) > PORTS_IN_A_LIST:
            raise DeniedError("IIAC", "Too many ports")
    return found


def named(command: Command, number: int, known: Sequence[str]) -> dict[str, Word]:
    """The parameters `NAME=value` of a block, by name in capitals."""
    told: dict[str, Word] = {}
    for word in command.words(number):
        match = NAMED.fullmatch(word.text)
        name = match[1] if match else word.plain
        if match is None or name.upper() not in known:
            raise DeniedError("IPNV", f"Unexpected parameter {name} in block {number}")
        if name.upper() in told:
            raise DeniedError("IPNV", f"Parameter {name} twice in block {number}")
        told[name.upper()] = Word(match[2], word.offset + match.start(2))
    if not told:
        raise DeniedError("IPMS", f"Too few parameters (0/1) in block {number}")
    return told


def positional(command: Command, number: int, least: int, most: int) -> list[str]:
    """The parameters of a block by place; those that were left out at the end are empty."""
    words = [word.plain for word in command.words(number)]
    if len(words) < least:
        raise DeniedError("IPMS", f"Too few parameters ({len(words)}/{least}) in block {number}")
    if len(words) > most:
        raise DeniedError("IPEX", f"Too many parameters ({len(words)}/{most}) in block {number}")
    return words + [""] * (most - len(words))


def chosen(value: str, known: Mapping[str, str]) -> str:
    """One of a few words, in any case."""
    if value.upper() in known:
        return known[value.upper()]
    if re.fullmatch("[0-9.+-]+", value):
        raise DeniedError("IPNV", "Parameter not valid")
    raise DeniedError("IDNV", f"Invalid value {value}")


def number(value: str, low: float, high: float) -> float:
    """A number in its bounds."""
    if re.fullmatch(r"[+-]?[0-9]{1,6}(\.[0-9]{1,6})?", value) and low <= float(value) <= high:
        return float(value)
    raise DeniedError("IPNV", "Parameter not valid")


def whole(value: str, low: int, high: int) -> int:
    """A whole number in its bounds."""
    if re.fullmatch(r"[0-9]{1,9}", value) and low <= int(value) <= high:
        return int(value)
    raise DeniedError("IPNV", "Parameter not valid")


def _port(text: str, valid: range) -> int:
    if not PORT.fullmatch(text) or int(text) not in valid:
        raise invalid_port(text)
    return int(text)


def _span(first: str, last: str, valid: range) -> range:
    low, high = _port(first, valid), _port(last, valid)
    if high < low:
        raise invalid_port(f"{first}&&{last}")
    return range(low, high + 1)
