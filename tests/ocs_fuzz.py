"""Inputs that are no commands, or none that may change anything: noise, and what is left of commands after some bytes went wrong."""

import random
from collections.abc import Iterator

from hypothesis import strategies as st

EDITS = 3
"""So few wrong bytes don't turn the port 901 into one that a small switch has, in both of a command's lists."""
SCPI_WORDS = (
    b":oxc:swit:conn:add (@901,902),(@913,914)",
    b":OXC:SWITch:CONNect:ADD (@901:909), (@913:921)",
    b":oxc:swit:conn:only (@901),(@913);stat?",
    b":oxc:swit:conn:sub (@901),(@913);*opc?",
    b":oxc:swit:conn:stat?",
    b":oxc:swit:conn:port? 902",
    b":oxc:swit:size?",
    b":oxc:swit:port:dis (@902,904)",
    b":oxc:swit:port:enab (@902,904)",
    b":oxc:swit:port:stat? (@2,4,6)",
    b":pmon:pow? (@1,2,13)",
    b":syst:comm:netw:addr?",
    b":syst:comm:netw:addr 999.168.1.1,192.168.1.1",
    b":syst:err:all?;*stb?;*esr?;*ese 300;*sre -1",
    b"*idn?;*opc;*wai;*tst?",
)
END = (b"\n", b"\r\n", b";", b"")


def noise(source: random.Random) -> bytes:
    """Bytes without any sense."""
    return source.randbytes(source.randrange(64)).replace(b"\n", b"?") + source.choice(END)


def mangled(source: random.Random, words: tuple[bytes, ...]) -> bytes:
    """A command after one to three of its bytes were lost, doubled or changed."""
    command = bytearray(source.choice(words))
    for _ in range(source.randint(1, EDITS)):
        at = source.randrange(len(command))
        match source.randrange(3):
            case 0:
                del command[at : at + 1]
            case 1:
                command[at:at] = command[at : at + 1]
            case _:
                command[at] = source.randrange(256)
    return bytes(command).replace(b"\n", b"") + source.choice(END)


def inputs(seed: int, number: int, words: tuple[bytes, ...] = SCPI_WORDS) -> Iterator[bytes]:
    """So many inputs, the same for the same seed."""
    source = random.Random(seed)
    for _ in range(number):
        yield noise(source) if source.random() < 0.3 else mangled(source, words)


def wrong_inputs(words: tuple[bytes, ...] = SCPI_WORDS) -> st.SearchStrategy[bytes]:
    """The same for hypothesis: noise, a mangled command, or a flood of one byte."""
    mangling = st.builds(lambda source: mangled(source, words), st.randoms(use_true_random=False))
    flood = st.builds(
        lambda byte, length: byte * length, st.binary(min_size=1, max_size=1), st.integers(0, 70_000)
    )
    return st.one_of(
        st.binary(max_size=100).filter(lambda data: b"disc" not in data.lower()), mangling, flood
    )
