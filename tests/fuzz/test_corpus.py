"""Short form of the fuzz tests: every kept input, and mutations of them."""

import pytest

from tests.fuzz.targets import targets
from tests.support.fuzzing import FuzzTarget, mutations

_MUTATIONS = 500


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.name)
def test_reader_survives_kept_and_mutated_inputs(target: FuzzTarget) -> None:
    corpus = target.corpus()
    assert corpus, f"tests/fuzz/corpus/{target.name} needs a valid input at least"
    for data in (*corpus, *mutations(corpus, _MUTATIONS)):
        try:
            target.check(data)
        except BaseException as error:
            error.add_note(f"input: {data!r}")
            raise
