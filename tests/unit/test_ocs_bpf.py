"""The assembler: instructions as RFC 9669 encodes them."""

import os

import pytest

from emulator import bpf, bpf_calls
from emulator.bpf import BpfError, Instruction, Jump, Label, Reg, Size, assembled


@pytest.mark.parametrize(
    ("line", "encoded"),
    [
        pytest.param(bpf.move(Reg.R0, 2), "b7 00 0000 02000000", id="move-number"),
        pytest.param(bpf.move(Reg.R6, Reg.R1), "bf 16 0000 00000000", id="move-register"),
        pytest.param(bpf.add(Reg.R8, Reg.R1), "0f 18 0000 00000000", id="add"),
        pytest.param(bpf.multiply(Reg.R7, 4), "27 07 0000 04000000", id="multiply"),
        pytest.param(bpf.bit_and(Reg.R1, 1), "57 01 0000 01000000", id="and"),
        pytest.param(bpf.load(Size.WORD, Reg.R1, Reg.R6, 40), "61 61 2800 00000000", id="load-word"),
        pytest.param(bpf.load(Size.DOUBLE, Reg.R1, Reg.R8, 8), "79 81 0800 00000000", id="load-double"),
        pytest.param(bpf.atomic_add(Reg.R3, 8, Reg.R4), "db 43 0800 00000000", id="atomic-add"),
        pytest.param(
            bpf.address(Reg.R1, 7, 16), "18 21 0000 07000000 00 00 0000 10000000", id="address-of-memory"
        ),
        pytest.param(bpf.call(bpf.REDIRECT), "85 00 0000 17000000", id="call"),
        pytest.param(bpf.leave(), "95 00 0000 00000000", id="leave"),
    ],
)
def test_instructions_are_encoded_as_the_kernel_reads_them(line: Instruction, encoded: str) -> None:
    assert assembled([line]).hex() == encoded.replace(" ", "")


def test_jumps_count_slots_from_the_instruction_behind_them() -> None:
    program: list[Instruction | Label] = [
        Label("again"),
        bpf.jump_if(Jump.EQUAL, Reg.R1, 0, "out"),
        bpf.address(Reg.R2, 3, 0),  # two slots
        bpf.jump("again"),
        Label("out"),
        bpf.leave(),
    ]
    words = [assembled(program)[at : at + 8].hex() for at in range(0, 40, 8)]
    assert words[0] == "1501030000000000"
    assert words[3] == "0500fcff00000000"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        pytest.param([bpf.jump("nowhere")], "no label nowhere", id="missing"),
        pytest.param([Label("here"), Label("here")], "label here stands twice", id="twice"),
    ],
)
def test_a_label_stands_exactly_once(program: list[Instruction | Label], said: str) -> None:
    with pytest.raises(BpfError, match=said):
        assembled(program)


def test_a_descriptor_that_is_no_memory_is_a_fault() -> None:
    reading, writing = os.pipe()
    with pytest.raises(BpfError, match="does not map as 64 bytes of BPF memory"):
        bpf_calls.Memory(reading, 64)
    os.close(reading)
    os.close(writing)
