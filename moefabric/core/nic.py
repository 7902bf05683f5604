"""NICs: their kinds and their names."""

from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, Self


class NicKind(StrEnum):
    """The switch on which a NIC ends: the OCS or the EPS."""

    OPTICAL = "optical"
    ELECTRICAL = "electrical"

    __hash__ = str.__hash__  # Enum's is not in C, and every set of NICs calls it


class Nic(NamedTuple):
    """A server's network interface: `s0/o1` ends on the region's OCS, `s0/e0` on the EPS.

    Example:
        >>> nic = Nic.parse("s0/o1")
        >>> nic.server, nic.kind.value, nic.index
        ('s0', 'optical', 1)
    """

    server: str
    kind: NicKind
    index: int  # type: ignore[assignment]  # hides tuple.index, which has no use here

    def __str__(self) -> str:
        return f"{self.server}/{self.path}"

    @property
    def path(self) -> str:
        """The NIC's name within its server (`o1`, `e0`), which is also the name of its path."""
        return f"{self.kind[0]}{self.index}"

    @classmethod
    @lru_cache(maxsize=1 << 16)
    def parse(cls, text: str) -> Self:
        """Return the NIC with this name.

        Args:
            text: Such as `s0/o1` or `s0/e0`.

        Raises:
            ValueError: If the text names no NIC.
        """
        server, _, path = text.partition("/")
        kinds = {"o": NicKind.OPTICAL, "e": NicKind.ELECTRICAL}
        if not server or path[:1] not in kinds or not path[1:].isdecimal():
            raise ValueError(f"{text!r} is not a NIC such as s0/o1 or s0/e0")
        return cls(server, kinds[path[0]], int(path[1:]))
