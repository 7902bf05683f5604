"""All-to-all of embedding vectors: each rank has whole tables, and wants all tables' vectors.

Blocks are coded by their sender, travel as bytes, and are decoded by their receiver. Gradients go
the opposite way. A rank's own slice isn't coded.
"""

import struct
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Final

import numpy as np
import torch
import torch.distributed as dist

from moefabric_studies.codecs.block_codecs import BlockCodec
from moefabric_studies.codecs.error_bounded import Floats

_LENGTH: Final = struct.Struct("<I")
Blocks = list[tuple[int, Floats]]
"""Blocks with the table of each."""


def owned_tables(rank: int, ranks: int, tables: int) -> range:
    """Return the tables of a rank: they are dealt out in turn."""
    return range(rank, tables, ranks)


class EmbeddingExchange:
    """The all-to-alls of this rank.

    Args:
        codecs: Codec of each table.

    Attributes:
        owned: Tables of each rank.
        seconds: Time in all-to-alls so far, coding included.
    """

    def __init__(self, codecs: Sequence[BlockCodec]) -> None:
        self._codecs, self.seconds = codecs, 0.0
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self.owned = [owned_tables(r, self._ranks, len(codecs)) for r in range(self._ranks)]

    def vectors(self, owned_vectors: Floats) -> Floats:
        """Return this rank's samples of all tables.

        Args:
            own: Vectors of this rank's tables, shape [own table, sample of all ranks, dimension].

        Returns:
            Shape [table, sample of this rank, dimension].
        """
        arrived = self._swap(self.outgoing(owned_vectors), self.owned)
        samples = owned_vectors.shape[1] // self._ranks
        vectors = np.empty((len(self._codecs), samples, owned_vectors.shape[2]), np.float32)
        for tables, blocks in zip(self.owned, arrived, strict=True):
            vectors[tables] = blocks
        return vectors

    def gradients(self, gradients: Floats) -> Floats:
        """Return the gradients of this rank's tables, the opposite of `vectors`."""
        blocks = [[(table, gradients[table]) for table in tables] for tables in self.owned]
        arrived = self._swap(blocks, [self.owned[self._rank]] * self._ranks)
        return np.concatenate([np.stack(part) for part in arrived], axis=1)

    def outgoing(self, owned_vectors: Floats) -> list[Blocks]:
        """Return the blocks for each rank."""
        slices = np.split(owned_vectors, self._ranks, axis=1)
        tables = self.owned[self._rank]
        return [list(zip(tables, part, strict=True)) for part in slices]

    def encode(self, blocks: Sequence[Blocks]) -> list[bytes]:
        """Return the message to each rank; that to this one is empty."""
        return [
            b"" if rank == self._rank else b"".join(self._coded(part))
            for rank, part in enumerate(blocks)
        ]

    def _coded(self, blocks: Blocks) -> Iterator[bytes]:
        for table, block in blocks:
            data = self._codecs[table].encode(np.ascontiguousarray(block))
            yield _LENGTH.pack(len(data))
            yield data

    def decode(self, message: bytes, tables: Sequence[int]) -> list[Floats]:
        """Return the blocks of a message, one for each of the tables."""
        blocks, place = [], 0
        for table in tables:
            (size,) = _LENGTH.unpack_from(message, place)
            place += _LENGTH.size + size
            blocks.append(self._codecs[table].decode(message[place - size : place]))
        return blocks

    def transfer(self, messages: Sequence[bytes]) -> list[bytes]:
        """Send a message to each rank, and return those that arrive."""
        sizes = torch.tensor([len(message) for message in messages])
        arriving = torch.empty_like(sizes)
        dist.all_to_all_single(arriving, sizes)
        sent = torch.frombuffer(bytearray(b"".join(messages)), dtype=torch.uint8)
        received = torch.empty(int(arriving.sum()), dtype=torch.uint8)
        dist.all_to_all_single(received, sent, arriving.tolist(), sizes.tolist())
        return [part.numpy().tobytes() for part in received.split_with_sizes(arriving.tolist())]

    def decode_all(self, messages: Sequence[bytes], tables: Sequence[range]) -> list[list[Floats]]:
        """Return the blocks from each rank; none from this one, whose message is empty."""
        return [
            self.decode(message, of_rank) if message else []
            for message, of_rank in zip(messages, tables, strict=True)
        ]

    def _swap(self, blocks: Sequence[Blocks], tables: Sequence[range]) -> list[list[Floats]]:
        """Send blocks to all ranks, and return those that arrive.

        Args:
            blocks: The blocks for each rank.
            tables: Tables of the blocks from each rank.
        """
        began = perf_counter()
        arrived = self.decode_all(self.transfer(self.encode(blocks)), tables)
        arrived[self._rank] = [block for _, block in blocks[self._rank]]
        self.seconds += perf_counter() - began
        return arrived
