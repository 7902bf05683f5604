"""Fuzz targets: functions that read one input from the network or a file."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"
LONGEST_INPUT = 4096
_INTERESTING = (b"\x00", b"\xff", b"\x7f", b"[" * 64, b"{" * 64, b"\r\n", b"-1", b"1e999", b"NaN")


@dataclass(frozen=True)
class FuzzTarget:
    """A reader that any input must leave working.

    Attributes:
        name: Also the folder of its corpus, `tests/fuzz/corpus/NAME`.
        read: Reads one input. It catches the errors that the reader documents; any other
            exception is a defect.
        limit_s: Seconds that one input may take.
    """

    name: str
    read: Callable[[bytes], None]
    limit_s: float = 2.0

    def corpus(self) -> list[bytes]:
        """Return the kept inputs: valid ones, and those that once found a defect."""
        return [file.read_bytes() for file in sorted((CORPUS / self.name).iterdir())]

    def check(self, data: bytes) -> None:
        """Read one input; raise on a defect, or when the input takes longer than `limit_s`."""
        with _time_limit(self.limit_s):
            self.read(data)


class SlowInputError(BaseException):
    """An input took too long. Readers that catch Exception don't hide it."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise SlowInputError(f"the input took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    outer_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, outer_s)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def input_file(data: bytes, suffix: str) -> Iterator[Path]:
    """Yield a file in memory that holds an input."""
    file = Path(f"/dev/shm/moefabric-fuzz-{os.getpid()}{suffix}")
    file.write_bytes(data)
    try:
        yield file
    finally:
        file.unlink()


def mutations(corpus: list[bytes], count: int) -> Iterator[bytes]:
    """Yield this number of mutated inputs: bytes changed, removed, repeated or from elsewhere."""
    rng = random.Random(0)
    for _ in range(count):
        data = bytearray(rng.choice(corpus))
        for _ in range(rng.randint(1, 4)):
            _mutate(data, corpus, rng)
        yield bytes(data[:LONGEST_INPUT])


def _mutate(data: bytearray, corpus: list[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.randint(1, 16))
    match rng.randrange(6):
        case 0 if data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        case 1:
            del data[at:end]
        case 2:
            data[at:at] = data[at:end] * rng.randint(1, 8)
        case 3:
            data[at:end] = rng.choice(_INTERESTING)
        case 4:
            other = rng.choice(corpus)
            start = rng.randrange(len(other) + 1)
            data[at:at] = other[start : start + rng.randint(1, 64)]
        case _:
            data[at:end] = rng.randbytes(end - at)
