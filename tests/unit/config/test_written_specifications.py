"""Specifications as JSON, which journals and sweeps keep: sections stay mappings of their keys."""

from moefabric.config.model import ModelSpec

ATTENTION = '{"name": "mixtral-8x7b", "attention": {"heads": 8, "kv_heads": 8, "head_size": 64}}'


def test_section_of_a_data_class_is_written_with_its_keys_and_read_again() -> None:
    spec = ModelSpec.model_validate_json(ATTENTION)
    written = spec.model_dump(mode="json")["attention"]
    assert (written["kind"], written["heads"], written["head_size"]) == ("grouped", 8, 64)
    assert ModelSpec.model_validate_json(spec.model_dump_json()) == spec
