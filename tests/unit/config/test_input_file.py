"""Files that users write, when they are huge or nested."""

from pathlib import Path

import pytest

from moefabric.config.input_file import MAX_YAML_BYTES, read_json, read_yaml
from moefabric.core.errors import SpecError


def aliases(form: str) -> str:
    """Return a document whose last value is 9^8 values with aliases expanded."""
    lines = ["a0: &a0 {k: 1}"]
    for number in range(1, 9):
        values = ", ".join([f"*a{number - 1}"] * 9)
        lines.append(f"a{number}: &a{number} {form.format(values)}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("a: " + "[" * 5000, "nested more than 64 deep", id="lists"),
        pytest.param("- " * 5000, "nested more than 64 deep", id="block lists"),
        pytest.param(aliases("{{<<: [{}]}}"), "6: not YAML: more than 50000 values", id="merged"),
        pytest.param(aliases("[{}]"), "6: not YAML: more than 50000 values", id="aliases"),
        pytest.param("a: &a [*a]", "a value contains itself", id="cycle"),
        pytest.param("a: " + " " * MAX_YAML_BYTES, "has more than 1048576 bytes", id="long"),
    ],
)
def test_excessive_yaml_is_refused_in_one_line(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "fabric.yaml"
    file.write_text(text)
    with pytest.raises(SpecError, match=fault) as error:
        read_yaml(file)
    assert str(error.value).startswith(str(file))
    assert "\n" not in str(error.value)


def test_nested_setting_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fabric.yaml"
    file.write_text("a: 1")
    with pytest.raises(SpecError, match=r"--set a=.*nested more than 64 deep"):
        read_yaml(file, [f"a={'[' * 100}"])


def test_aliases_are_read(tmp_path: Path) -> None:
    file = tmp_path / "fabric.yaml"
    file.write_text("base: &base {rate: 1e9}\ns0: {<<: *base, name: s0}\ns1: *base\n")
    rate = {"rate": 1e9}
    assert read_yaml(file) == {"base": rate, "s0": {**rate, "name": "s0"}, "s1": rate}


def test_nested_json_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "demand.json"
    file.write_text("[" * 100_000)
    with pytest.raises(SpecError, match="not JSON") as error:
        read_json(file)
    assert "\n" not in str(error.value)


def test_settings_are_a_list_of_texts() -> None:
    with pytest.raises(SpecError, match=r"^settings: a list of texts is needed: \['a=1'\]$"):
        read_yaml(__file__, "a=1")
