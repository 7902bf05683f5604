"""Assembler of BPF programs: encoding of RFC 9669, labels; and BPF memory."""

import os

import pytest

from moefabric.emulator.linux import bpf_assembler as bpf
from moefabric.emulator.linux import bpf_syscalls as bpf_calls
from moefabric.emulator.linux.bpf_assembler import (
    BpfError,
    Instruction,
    Jump,
    Label,
    Reg,
    Size,
    assemble,
)


@pytest.mark.parametrize(
    ("line", "encoded"),
    [
        pytest.param(bpf.move(Reg.R0, 2), "b7 00 0000 02000000", id="move-number"),
        pytest.param(bpf.move(Reg.R6, Reg.R1), "bf 16 0000 00000000", id="move-register"),
        pytest.param(bpf.add(Reg.R8, Reg.R1), "0f 18 0000 00000000", id="add"),
        pytest.param(bpf.multiply(Reg.R7, 4), "27 07 0000 04000000", id="multiply"),
        pytest.param(bpf.bit_and(Reg.R1, 1), "57 01 0000 01000000", id="and"),
        pytest.param(
            bpf.load(Size.WORD, Reg.R1, Reg.R6, 40), "61 61 2800 00000000", id="load-word"
        ),
        pytest.param(
            bpf.load(Size.DOUBLE, Reg.R1, Reg.R8, 8), "79 81 0800 00000000", id="load-double"
        ),
        pytest.param(bpf.atomic_add(Reg.R3, 8, Reg.R4), "db 43 0800 00000000", id="atomic-add"),
        pytest.param(
            bpf.address(Reg.R1, 7, 16),
            "18 21 0000 07000000 00 00 0000 10000000",
            id="address-of-memory",
        ),
        pytest.param(bpf.call(bpf.REDIRECT), "85 00 0000 17000000", id="call"),
        pytest.param(bpf.exit_program(), "95 00 0000 00000000", id="exit"),
    ],
)
def test_instruction_encoding_follows_rfc_9669(line: Instruction, encoded: str) -> None:
    assert assemble([line]).hex() == encoded.replace(" ", "")


def test_jump_offset_counts_slots_from_next_instruction() -> None:
    program: list[Instruction | Label] = [
        Label("again"),
        bpf.jump_if(Jump.EQUAL, Reg.R1, 0, "out"),
        bpf.address(Reg.R2, 3, 0),  # two slots
        bpf.jump("again"),
        Label("out"),
        bpf.exit_program(),
    ]
    slots = [assemble(program)[offset : offset + 8].hex() for offset in range(0, 40, 8)]
    assert slots[0] == "1501030000000000"
    assert slots[3] == "0500fcff00000000"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        pytest.param([bpf.jump("nowhere")], "no label nowhere", id="missing"),
        pytest.param([Label("here"), Label("here")], "duplicate label here", id="twice"),
    ],
)
def test_label_must_exist_once(program: list[Instruction | Label], message: str) -> None:
    with pytest.raises(BpfError, match=message):
        assemble(program)


def test_memory_refuses_other_descriptor() -> None:
    read_fd, write_fd = os.pipe()
    with pytest.raises(BpfError, match="does not map as 64 bytes of BPF memory"):
        bpf_calls.Memory(read_fd, 64)
    os.close(read_fd)
    os.close(write_fd)
