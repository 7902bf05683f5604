"""Where reads go."""

from __future__ import annotations

import ctypes

from agents.engine.wire import LINE

READ = 256 * 1024  # a read and the block that it is compared with stay in a core's second-level cache


class Buffer:
    """What a read fills, from the same place within a cache line as the bytes had in their stream."""

    def __init__(self, size: int) -> None:
        self.bytes = bytearray(size + 2 * LINE)
        first = -ctypes.addressof(ctypes.c_char.from_buffer(self.bytes)) % LINE
        view = memoryview(self.bytes)
        self.places = [(first + phase, view[first + phase : first + phase + size]) for phase in range(LINE)]
