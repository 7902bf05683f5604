"""`moefabric schema`: JSON Schemas of the files that moefabric reads and writes."""

import json
import re
from pkgutil import resolve_name
from typing import Any, Final

import click
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from moefabric.config.data_sections import descriptions
from moefabric.ui.cli.command import cli_command

SCHEMAS: Final = {
    "experiment": "moefabric.config.experiment:ExperimentSpec",
    "fabric": "moefabric.config.fabric:FabricSpec",
    "hosts": "moefabric.config.hosts:HostsSpec",
    "model": "moefabric.config.model:ModelSpec",
    "ocs-profile": "moefabric.config.ocs:full_profile_section",
    "sweep": "moefabric.api.sweeps.spec:SweepSpec",
    "run": "moefabric.results.model:RunResult",
}
"""The model of each kind of file, or a function that returns it."""


class _SchemaGenerator(GenerateJsonSchema):
    """Describes fields by the docstrings below them, which are read here: nothing else needs them.

    Leaves out titles that repeat the key, and the docstrings of enumerations.
    """

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        described = super().model_schema(schema)
        texts = descriptions(schema["cls"])
        for name, field in schema["cls"].model_fields.items():
            keys = (field.validation_alias, field.serialization_alias, name)
            for key in described.get("properties", {}).keys() & keys:
                if name in texts:
                    described["properties"][key].setdefault("description", texts[name])
        return described

    def generate(
        self, schema: core_schema.CoreSchema, mode: JsonSchemaMode = "validation"
    ) -> JsonSchemaValue:
        result = super().generate(schema, mode)
        for definition in result.get("$defs", {}).values():
            if "enum" in definition:
                definition.pop("description", None)
        return result


@cli_command("moefabric schema experiment", "moefabric schema fabric > fabric.schema.json")
@click.argument("kind", type=click.Choice(list(SCHEMAS)))
def schema(kind: str) -> None:
    """Print the JSON Schema of KIND.

    `run` is the JSON that `run --json` writes; the other kinds are YAML files that users write.
    """
    click.echo(schema_text(kind))


def schema_text(kind: str) -> str:
    """Return the JSON Schema of a kind of file."""
    model: Any = resolve_name(SCHEMAS[kind])
    if not isinstance(model, type):
        model = model()
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    contents = model.model_json_schema(schema_generator=_SchemaGenerator)
    text = json.dumps(dialect | contents, indent=2, ensure_ascii=False)
    return re.sub(r"(\\n)+", " ", text)  # descriptions are wrapped docstrings
