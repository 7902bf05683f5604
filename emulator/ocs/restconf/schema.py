"""The switch's YANG modules as data: which containers, lists and leaves there are, and what their values may be.

After optical-switch (revisions 2015-09-14 to 2018-03-22) and polatis-switch, as published with ONOS.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

OPTICAL: Final = "optical-switch"
POLATIS: Final = "polatis-switch"
NAMESPACES: Final = {
    OPTICAL: "http://www.polatis.com/yang/optical-switch",
    POLATIS: "http://www.polatis.com/yang/polatis-switch",
    "ietf-restconf": "urn:ietf:params:xml:ns:yang:ietf-restconf",
    "ietf-yang-library": "urn:ietf:params:xml:ns:yang:ietf-yang-library",
}
SINCE: Final = "2017-08-04"
"""The revision since when cross-connects are a list of `pair`."""


class Is(Enum):
    """What a leaf's value is."""

    NUMBER = "number"
    DECIMAL = "decimal"
    TEXT = "text"
    TRUTH = "truth"


@dataclass(frozen=True)
class Leaf:
    """A value; `many`: a list of them."""

    name: str
    value: Is = Is.TEXT
    low: float = 0
    high: float = 4294967295
    words: tuple[str, ...] = ()
    config: bool = True
    many: bool = False
    module: str = ""
    """Empty: that of what it is part of."""
    mandatory: bool = False


@dataclass(frozen=True)
class Node:
    """A container; with a key, a list."""

    name: str
    children: tuple["Leaf | Node", ...]
    key: str = ""
    config: bool = True
    module: str = ""
    """Empty: that of what it is part of."""
    alias: str = ""
    """What an older revision calls it."""

    def child(self, name: str) -> "Leaf | Node | None":
        """Its part of that name."""
        for child in self.children:
            if name == child.name or (isinstance(child, Node) and name == child.alias):
                return child
        return None

    @property
    def leaves(self) -> Mapping[str, Leaf]:
        """Its values, by name."""
        return {child.name: child for child in self.children if isinstance(child, Leaf)}


PORT_ID = Leaf("port-id", Is.NUMBER, 1, 65535)
LABEL_CHARS = 128
OLD_ATTENUATIONS = ("NONE", "ABSOLUTE", "RELATIVE", "VENDOR")


def number(
    name: str, low: int = 0, high: int = 4294967295, *, config: bool = True, mandatory: bool = False
) -> Leaf:
    return Leaf(name, Is.NUMBER, low, high, config=config, mandatory=mandatory)


def decimal(name: str, low: float = -1000, high: float = 1000, *, config: bool = True) -> Leaf:
    """A number of two decimal places."""
    return Leaf(name, Is.DECIMAL, low, high, config=config)


def one_of(name: str, *words: str, config: bool = True, module: str = "") -> Leaf:
    return Leaf(name, words=words, config=config, module=module)


def shown(*names: str) -> tuple[Leaf, ...]:
    """Texts that nobody can set."""
    return tuple(Leaf(name, config=False) for name in names)


def ports(*leaves: Leaf | Node, config: bool = True) -> Node:
    """A list of ports."""
    return Node("port", (PORT_ID, *leaves), "port-id", config)


PAIR: Final = Node(
    "pair",
    (number("ingress", 1, 65535), number("egress", 1, 65535, mandatory=True)),
    "ingress",
    alias="pairs",
)
INTERFACE: Final = tuple(map(Leaf, ("name", "ip-address", "gateway", "subnet", "broadcast")))

OLD_MONITOR: Final = Node(
    "opm",
    (
        decimal("lambda", 1260, 1640),
        decimal("power-high-alarm"),
        decimal("power-low-alarm"),
        decimal("power", config=False),
        Leaf("offset", Is.DECIMAL, -100, 100, module=POLATIS),
        Leaf("averaging-time-select", Is.NUMBER, 1, 8, module=POLATIS),
        Node(
            "voa",
            (
                decimal("attenuation-level"),
                one_of("attenuation-mode", *(f"VOA_ATTEN_MODE_{mode}" for mode in OLD_ATTENUATIONS)),
                number("attenuation-reference-port", 0, 65535),
            ),
        ),
    ),
)
"""A power monitor, as revisions before 2017-08-04 have it."""

_ATTENUATIONS = ("NONE", "RELATIVE", "ABSOLUTE", "CONVERGED", "MAXIMUM", "FIXED")

TOP: Final[tuple[Node, ...]] = (
    Node(
        "product-information",
        shown("manufacturer", "serial-number", "model-name", "software-version"),
        config=False,
    ),
    Node(
        "port-config",
        (
            ports(
                one_of("status", "UNSUPPORTED", "ENABLED", "DISABLED", "FAILED", config=False),
                Leaf("label"),
                Leaf("peer-port"),
            ),
        ),
    ),
    Node("opm-power", (ports(decimal("power", config=False), config=False),), config=False),
    Node(
        "opm-config",
        (
            ports(
                decimal("wavelength", 1260, 1640),
                decimal("offset", -100, 100),
                number("averaging-time", 1, 8),
            ),
        ),
    ),
    Node(
        "opm-alarm-config",
        (
            ports(
                decimal("signal-low-threshold"),
                decimal("signal-degrade-threshold"),
                decimal("signal-high-threshold"),
            ),
        ),
    ),
    Node(
        "voa",
        (
            ports(
                one_of("atten-mode", *(f"VOA_MODE_{mode}" for mode in _ATTENUATIONS)),
                decimal("atten-level"),
                number("reference-port", 0, 65535),
            ),
        ),
    ),
    Node(
        "ports",
        (
            ports(
                Leaf("port-label"),
                one_of("port-state", "PC_ENABLED", "PC_DISABLED"),
                one_of("port-status", "PO_ENABLED", "PO_DISABLED", "PO_FAILED", config=False),
                Leaf("peer-port"),
                OLD_MONITOR,
            ),
        ),
    ),
    Node("cross-connects", (PAIR,)),
    Node(
        "groups",
        (
            Node(
                "group",
                (
                    Leaf("group-name"),
                    Leaf("ingress", Is.NUMBER, 1, 65535, many=True),
                    Leaf("egress", Is.NUMBER, 1, 65535, many=True),
                    *shown("connected-group"),
                ),
                "group-name",
            ),
        ),
    ),
    Node("aps", (Node("protection-service", shown("sname"), "sname", config=False),), config=False),
    Node("subswitches", (Node("subswitch", shown("sname"), "sname", config=False),), config=False),
    Node(
        "system-config",
        (
            Node("interface-status", INTERFACE, "name", config=False),
            Node("interface", INTERFACE, "name"),
            Node(
                "user",
                (
                    Leaf("name"),
                    one_of("type", "RADIUS_USER", "LOCAL_USER"),
                    Leaf("password"),
                    one_of("group", "admin", "user", "view", module=POLATIS),
                ),
                "name",
            ),
            *shown("current-datetime", "boot-datetime"),
            one_of("startup-mode", "MODE_VOLATILE", "MODE_PRESERVE", module=POLATIS),
        ),
    ),
    Node(
        "sessions",
        (
            Node(
                "session",
                (
                    number("session-id", config=False),
                    Leaf("protocol-name", config=False),
                    Leaf("protocol-port", Is.NUMBER, config=False),
                    Leaf("client-address", config=False),
                    Leaf("user-name", config=False),
                ),
                "session-id",
                config=False,
            ),
        ),
        config=False,
        module=POLATIS,
    ),
    Node(
        "shutter-status",
        (
            Node(
                "port",
                (
                    PORT_ID,
                    number("signal-block-time", config=False),
                    number("signal-restore-time", config=False),
                    number("cycles", config=False),
                    one_of("status", "SHUTTER_IDLE", "SHUTTER_SET", "SHUTTER_ACTIVE", config=False),
                ),
                "port-id",
                config=False,
            ),
        ),
        config=False,
        module=POLATIS,
    ),
    Node(
        "system-alarms",
        (
            Node(
                "alarm",
                shown("alarm-time", "alarm-type", "alarm-message"),
                "alarm-time",
                config=False,
            ),
        ),
        config=False,
        module=POLATIS,
    ),
    Node(
        "notification-log",
        (
            Node(
                "log",
                (
                    number("notif-id", config=False),
                    *shown("notif-type", "notif-time-first", "notif-time-last", "notif-message"),
                ),
                "notif-id",
                config=False,
            ),
        ),
        config=False,
        module=POLATIS,
    ),
)
BY_NAME: Final = {node.name: node for node in TOP}


def module_of(part: "Leaf | Node", within: str = OPTICAL) -> str:
    """The module of a part of something of that module."""
    return part.module or within


def checked(leaf: Leaf, value: Any) -> Any:
    """A leaf's value in its one form. ValueError for one that it can't have."""
    if leaf.many:
        if not isinstance(value, list):
            raise ValueError(f"{leaf.name} is a list")
        return [_checked(leaf, one) for one in value]
    return _checked(leaf, value)


def _checked(leaf: Leaf, value: Any) -> Any:
    text = value if isinstance(value, str) else "" if isinstance(value, bool | None) else str(value)
    match leaf.value:
        case Is.TRUTH:
            if value in (True, "true"):
                return True
            if value in (False, "false"):
                return False
        case Is.NUMBER:
            if re.fullmatch(r"[0-9]{1,10}", text) and leaf.low <= int(text) <= leaf.high:
                return int(text)
        case Is.DECIMAL:
            if re.fullmatch(r"[+-]?[0-9]{1,6}(\.[0-9]{1,4})?", text) and leaf.low <= float(text) <= leaf.high:
                return f"{float(text):.2f}"
        case Is.TEXT if isinstance(value, str):
            if leaf.words and value in leaf.words:
                return value
            if not leaf.words and re.fullmatch(r"[ -~]*", value) and len(value) <= LABEL_CHARS:
                return value
    raise ValueError(f"{str(value)[:64]!r} is no value of {leaf.name}")


def ordered(names: Sequence[str], node: Node) -> list[str]:
    """Names in the order in which the module has them."""
    known = [child.name for child in node.children]
    return sorted(names, key=known.index)
