"""The exchange of HybridEP (arXiv 2510.19470): servers of a domain gather each other's experts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moefabric import SpecError


@dataclass(frozen=True)
class HybridEp:
    """Domains of servers on two levels: data centres, and the servers of each.

    Attributes:
        leaf: Servers of a data centre, which follow each other.
        dcs: Data centres of a domain.
        servers: Servers of a domain in each of its data centres.
        ratio: Bytes of an expert for each byte of it that moves.
        codec_s: Model seconds by which encoding and decoding experts lengthens attention.
        name: The name that specifications use.
    """

    leaf: int = 1
    dcs: int = 1
    servers: int = 1
    ratio: float = 1.0
    codec_s: float = 0.0
    name: str = "hybridep"

    def computing(self, servers: int) -> NDArray[np.int64]:
        """Return the server in the expert's domain that has the place of the token's server."""
        levels, domains = (servers // self.leaf, self.leaf), (self.dcs, self.servers)
        whole = servers % self.leaf == 0
        if not whole or any(n % size for n, size in zip(levels, domains, strict=True)):
            sizes = f"data centres of {self.leaf}, domains of {self.dcs} x {self.servers}"
            raise SpecError([("experts", f"{servers} servers are not whole {sizes}")])
        places = np.unravel_index(np.arange(servers), levels)
        digits = [
            place // size * size + place[:, None] % size
            for place, size in zip(places, domains, strict=True)
        ]
        return np.ravel_multi_index(tuple(digits), levels)
