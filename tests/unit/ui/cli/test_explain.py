"""`moefabric explain`: keys of files as the JSON Schemas describe them."""

import json

import pytest
from click.testing import CliRunner

from moefabric.api.key_reference import KINDS, KeyReference
from moefabric.ui.cli.main import main
from moefabric.ui.cli.schema import SCHEMAS

SETTLE = """\
wiring.regions.ocs.settle: Time until a moved port has light. Default: the profile's.
  file     experiment
"""


def explained(*words: str) -> str:
    result = CliRunner().invoke(main, ["explain", *words])
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: str) -> str:
    result = CliRunner().invoke(main, ["explain", *words])
    assert result.exit_code == 1
    return result.output


def test_key_has_meaning_type_units_and_default() -> None:
    text = explained("wiring.regions.ocs.settle")
    assert text.startswith(SETTLE)
    assert "  type     text such as 25ms" in text
    assert "  units    ns, us, µs, ms, s, min\n" in text
    assert "  default  paced\n" in explained("transport")
    assert "  default  none: it is needed\n" in explained("training.ep")
    assert "  type     whole number, 1 to 16\n" in explained("wiring.eps.spines")
    assert "  type     one of light, spread\n" in explained("wiring.unmarked")


def test_kinds_of_a_section_are_all_named_with_the_keys_that_only_some_have() -> None:
    assert "  type     grouped or latent or hybrid\n" in explained("model.attention.kind")
    assert "  default  grouped\n" in explained("model.attention.kind")
    assert "  of kind  latent\n" in explained("model.attention.query_rank")
    assert "  of kind  grouped or latent\n" in explained("model.attention.heads")
    assert "of kind" not in explained("model.attention.kind") + explained("model.experts")


def test_section_has_the_keys_inside_it() -> None:
    text = explained("wiring.regions.ocs")
    assert "\n    settle        Time until a moved port has light.\n" in text
    document = json.loads(explained("scale", "--json"))
    assert (document["type"], document["default"]) == ("mapping of keys or auto", "auto")
    assert list(document["children"]) == ["bytes", "dilation", "frame"]


@pytest.mark.parametrize(
    ("place", "same"),
    [
        ("wiring.regions[0].ocs.settle", "wiring.regions.ocs.settle"),
        ("wiring.servers.s0.nic_rate", "wiring.servers.nic_rate"),
        ("fabrics[1].policy", "fabrics.policy"),
    ],
)
def test_positions_and_names_may_be_given(place: str, same: str) -> None:
    assert explained(place) == explained(same)


def test_kind_follows_from_the_key_or_is_given() -> None:
    assert "  file     fabric\n" in explained("nics.optical")
    assert "  file     sweep\n" in explained("grid")
    assert "  file     ocs-profile\n" in explained("loss.typical_db")
    assert "  file     fabric\n" in explained("--kind", "fabric", "scale")
    assert explained().startswith("experiment ")


def test_unknown_key_names_those_that_there_are() -> None:
    text = refused("wiring.regions.ocs.setle")
    assert text.startswith("moefabric: wiring.regions.ocs: setle is not one of ports, ")
    assert text.endswith("; did you mean settle?\n")
    assert "; there is wiring.nic_rate, wiring.servers.nic_rate" in refused("nic_rates")
    assert "; there is wiring.regions.ocs.settle" in refused("setle")
    assert "training.iterations" in refused("iters")
    assert refused("training.iters").endswith("; did you mean iterations?\n")
    assert refused("seed.of") == "moefabric: seed: has no keys inside\n"


@pytest.mark.parametrize("word", ["inference", "decode", "prefill"])
def test_words_of_inference_are_told_that_only_training_is_modelled(word: str) -> None:
    assert "; only training is modelled, and gating" in refused(word)
    assert "there is" not in refused(word)


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_every_kind_is_explained(kind: str) -> None:
    reference = KeyReference.of_kind(kind)
    keys = list(reference.all())
    assert len(keys) >= 3
    for key in keys:
        assert reference.key(key.place) == key
        assert key.description
        assert key.type, key.place


def test_kinds_are_those_of_the_schemas() -> None:
    assert set(KINDS) == set(SCHEMAS)
