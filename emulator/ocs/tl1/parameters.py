"""Parameters of TL1 commands: port lists, named and positional parameters.

All functions raise DeniedError for invalid parameters.
"""

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from moefabric.emulator.ocs.cross_connects import Pair
from moefabric.emulator.ocs.tl1.syntax import Command, DeniedError, Field

PORT = re.compile(r"[0-9]{1,5}")
NAMED = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*=(.*)", re.DOTALL)
Parse = Callable[[str], Any]
"""Reads a value; DeniedError if it is invalid."""
Settings = Mapping[str, tuple[str, Parse]]
"""By name of a parameter, the setting and its parser."""
MAX_PORTS = 4096
"""Maximum number of ports in a list."""


def invalid_port(text: str) -> DeniedError:
    """Return the error for a port that does not exist, with the device's text."""
    return DeniedError("IDNV", f"Invalid OXC port: {text}")


def invalid_aid(command: Command) -> DeniedError:
    """Return the error for an access identifier that the command does not support."""
    return DeniedError("IIAC", f"Invalid AID {command.aid.value}")


def ports(aid: Field, valid: range) -> list[int]:
    """Read `1&4&10` or `1&&640`; an empty field or `ALL` means all ports."""
    if aid.value.upper() in ("", "ALL"):
        return list(valid)
    lists = aid.split(",")
    if len(lists) != 1:
        raise DeniedError("IIAC", "Too many parameters")
    return port_list(lists[0], valid)


def port_pairs(aid: Field, inputs: range, outputs: range) -> list[Pair]:
    """Read `1,9`, `1&2,9&10` or `1&&4,9&&12`: inputs and outputs, element by element."""
    lists = aid.split(",")
    if len(lists) != 2:
        few_or_many = "few" if len(lists) < 2 else "many"
        raise DeniedError("IIAC", f"Too {few_or_many} parameters ({len(lists)}/2)")
    if not all(field.text.strip() for field in lists):
        raise DeniedError("IIAC", "Empty parameters")
    ins, outs = port_list(lists[0], inputs), port_list(lists[1], outputs)
    if len(ins) != len(outs):
        raise DeniedError("IIAC", f"{len(ins)} ports for {len(outs)}")
    return list(zip(ins, outs, strict=True))


def port_list(field: Field, valid: range) -> list[int]:
    """Read `1&4&10` or `1&&640`."""
    parts = [part.value for part in field.split("&")]
    numbers: list[int] = []
    at = 0
    while at < len(parts):
        if at + 2 < len(parts) and not parts[at + 1]:
            first, last = _port(parts[at], valid), _port(parts[at + 2], valid)
            if last < first:
                raise invalid_port(f"{parts[at]}&&{parts[at + 2]}")
            numbers += range(first, last + 1)
            at += 3
        else:
            numbers.append(_port(parts[at], valid))
            at += 1
        if len(numbers) > MAX_PORTS:
            raise DeniedError("IIAC", "Too many ports")
    return numbers


def named(command: Command, known: Collection[str]) -> dict[str, Field]:
    """Return the parameters `NAME=value` of block 2, by name in capitals."""
    parameters: dict[str, Field] = {}
    for field in command.fields(2):
        match = NAMED.fullmatch(field.text)
        name = match[1] if match else field.value
        if match is None or name.upper() not in known:
            raise DeniedError("IPNV", f"Unexpected parameter {name} in block 2")
        if name.upper() in parameters:
            raise DeniedError("IPNV", f"Parameter {name} twice in block 2")
        parameters[name.upper()] = Field(match[2], field.offset + match.start(2))
    if not parameters:
        raise DeniedError("IPMS", "Too few parameters (0/1) in block 2")
    return parameters


def settings(command: Command, known: Settings) -> dict[str, Any]:
    """Return the settings that the parameters of block 2 name."""
    fields = named(command, known)
    return {
        setting: parse(fields[name].value)
        for name, (setting, parse) in known.items()
        if name in fields
    }


def positional(command: Command, least: int, most: int) -> list[str]:
    """Return `most` parameters of block 1 by position; omitted parameters are empty."""
    values = [field.value for field in command.fields(1)]
    if len(values) < least:
        raise DeniedError("IPMS", f"Too few parameters ({len(values)}/{least}) in block 1")
    if len(values) > most:
        raise DeniedError("IPEX", f"Too many parameters ({len(values)}/{most}) in block 1")
    return values + [""] * (most - len(values))


def choice(known: Mapping[str, str]) -> Parse:
    """Make a parser of one of a few words, in any case."""

    def parse(value: str) -> str:
        if value.upper() in known:
            return known[value.upper()]
        if re.fullmatch("[0-9.+-]+", value):
            raise DeniedError("IPNV", "Parameter not valid")
        raise DeniedError("IDNV", f"Invalid value {value}")

    return parse


def decimal(low: float, high: float) -> Parse:
    """Make a parser of a number within bounds."""
    return partial(_number, r"[+-]?[0-9]{1,6}(\.[0-9]{1,6})?", float, low, high)


def whole(low: int, high: int) -> Parse:
    """Make a parser of a whole number within bounds."""
    return partial(_number, r"[0-9]{1,9}", int, low, high)


def _number(
    pattern: str, convert: Callable[[str], float], low: float, high: float, value: str
) -> float:
    if re.fullmatch(pattern, value) and low <= convert(value) <= high:
        return convert(value)
    bounds = f"a number from {low:g} to {high:g} is needed"
    raise DeniedError("IPNV", f"Parameter not valid: {value[:20]}: {bounds}")


def _port(text: str, valid: range) -> int:
    if not PORT.fullmatch(text) or int(text) not in valid:
        raise invalid_port(f"{text} ({valid[0]}..{valid[-1]} are possible)")
    return int(text)
