"""`moefabric schema`: shipped schemas equal generated ones, and examples conform to them."""

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from moefabric.config.input_file import read_yaml
from moefabric.config.model import presets
from moefabric.config.plugins import OCS_PROFILES, built_in_names
from moefabric.ui.cli.main import main
from moefabric.ui.cli.schema import SCHEMAS, schema_text
from tests.support.paths import EXAMPLES, GOLDEN, REPOSITORY

jsonschema = pytest.importorskip("jsonschema")
PROFILES = REPOSITORY / "moefabric/config/profiles"
EXPERIMENTS = sorted([*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("train/*.yaml")])


@cache
def validator(kind: str) -> Any:
    return jsonschema.Draft202012Validator(json.loads(schema_text(kind)))


def errors(kind: str, path: Path) -> list[str]:
    return [error.message for error in validator(kind).iter_errors(read_yaml(path))]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_schema_prints_the_shipped_schema(kind: str) -> None:
    printed = CliRunner().invoke(main, ["schema", kind])
    shipped = REPOSITORY / f"docs/schemas/{kind}.schema.json"
    assert printed.exit_code == 0
    assert printed.output == shipped.read_text(), f"moefabric schema {kind} > {shipped}"
    jsonschema.Draft202012Validator.check_schema(json.loads(printed.output))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_examples_conform_to_their_schema(path: Path) -> None:
    kind = "experiment" if "experiment" in read_yaml(path) else "fabric"
    assert errors(kind, path) == []


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_examples_link_their_schema_for_editors(path: Path) -> None:
    kind = "experiment" if "experiment" in read_yaml(path) else "fabric"
    first = path.read_text().partition("\n")[0]
    link = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / link).resolve() == REPOSITORY / f"docs/schemas/{kind}.schema.json"


@pytest.mark.parametrize("kind", SCHEMAS)
def test_schemas_are_in_the_package(kind: str) -> None:
    shipped = files("moefabric") / "schemas" / f"{kind}.schema.json"
    assert json.loads(shipped.read_text()) == json.loads(schema_text(kind))


@pytest.mark.parametrize("name", built_in_names(OCS_PROFILES))
def test_shipped_profiles_conform_to_their_schema(name: str) -> None:
    assert errors("ocs-profile", PROFILES / f"{name}.yaml") == []


@pytest.mark.parametrize("name", presets())
def test_presets_of_models_conform_to_their_schema(name: str) -> None:
    assert errors("model", REPOSITORY / f"moefabric/config/models/{name}.yaml") == []


@pytest.mark.parametrize(
    "name",
    [
        "fabric-rate-bytes",
        "fabric-settle-nonsense",
        "fabric-keys-missing",
        "model-sizes-wrong",
        "experiment-values-out-of-range",
    ],
)
def test_wrong_values_do_not_conform(name: str) -> None:
    assert errors(name.partition("-")[0], GOLDEN / "errors" / f"{name}.yaml") != []


def fields(schema: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every property of a schema with its place."""
    if isinstance(schema, dict):
        for name, field in schema.get("properties", {}).items():
            yield f"{place}/{name}", field
        for key, value in schema.items():
            yield from fields(value, f"{place}/{key}")


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_field_has_a_description(kind: str) -> None:
    schema = json.loads(schema_text(kind))

    def described(field: Any) -> bool:
        section = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
        return bool(field.get("description") or section.get("description"))

    assert [place for place, field in fields(schema) if not described(field)] == []
