"""BTF: types are found by name, and members by their path."""

import struct
from pathlib import Path

import pytest

from moefabric.core.errors import UnsupportedError
from moefabric.emulator.linux import btf
from moefabric.emulator.linux.btf import KernelTypes, Kind, smallest_types


def types_with(records: bytes, names: bytes) -> KernelTypes:
    header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(records), len(records), len(names))
    return KernelTypes(header + records + names)


def test_members_of_embedded_structures_have_offsets_from_the_outer_one() -> None:
    names = b"\0int\0outer\0named\0deep\0hidden\0"
    at = {
        name: names.index(b"\0" + name.encode()) + 1
        for name in ["int", "outer", "named", "deep", "hidden"]
    }
    records = struct.pack("=IIII", at["int"], Kind.INT << 24, 4, 32)  # type 1
    records += struct.pack("=III", 0, Kind.STRUCT << 24 | 1, 8) + struct.pack(
        "=III", at["deep"], 1, 32
    )  # type 2 {_; deep}
    records += struct.pack("=III", 0, Kind.UNION << 24 | 1, 4) + struct.pack(
        "=III", at["hidden"], 1, 0
    )  # type 3
    flag = 1 << 31  # offsets beside sizes of bit fields
    records += struct.pack("=III", at["outer"], flag | Kind.STRUCT << 24 | 2, 24)
    records += struct.pack("=III", at["named"], 2, 5 << 24 | 64)
    records += struct.pack("=III", 0, 3, 128)
    types = types_with(records, names)
    assert types.offset("outer", "named.deep") == 12
    assert types.offset("outer", "hidden") == 16
    assert types.size(types.number(Kind.STRUCT, "outer")) == 24
    assert [member.name for member in types.members(4)] == ["named", ""]
    with pytest.raises(UnsupportedError, match=r"no named\.shallow in struct outer: boot"):
        types.offset("outer", "named.shallow")


def test_smallest_types_have_an_int() -> None:
    types = KernelTypes(smallest_types())
    assert types.number(Kind.INT, "int") == 1
    with pytest.raises(UnsupportedError, match="no struct int: boot"):
        types.number(Kind.STRUCT, "int")


def test_kernel_without_types_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(btf, "KERNEL_TYPES", tmp_path / "vmlinux")
    btf.kernel_types.cache_clear()
    try:
        with pytest.raises(UnsupportedError, match="CONFIG_DEBUG_INFO_BTF"):
            btf.kernel_types()
        (tmp_path / "vmlinux").write_bytes(bytes(64))
        with pytest.raises(UnsupportedError, match="no BTF of this machine's byte order"):
            btf.kernel_types()
    finally:
        btf.kernel_types.cache_clear()
