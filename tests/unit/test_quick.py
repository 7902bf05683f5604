"""The tests that stand for changed files."""

import pytest

from tests.quick import module_of, nearest_tests, selected_tests


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("moefabric/core/__init__.py", "moefabric.core"),
        ("agents/engine/outgoing.py", "moefabric.agents.engine.outgoing"),
        ("studies/moefabric_studies/paper/rows.py", "moefabric_studies.paper.rows"),
        ("tests/support/paths.py", "tests.support.paths"),
    ],
)
def test_file_has_the_module_by_which_others_import_it(file: str, module: str) -> None:
    assert module_of(file) == module


def test_tests_of_a_module_are_those_that_import_it_or_else_its_importers() -> None:
    importers = {"leaf": {"middle"}, "middle": {"top", "leaf"}}
    tests = {"test_top.py": {"top"}, "test_middle.py": {"middle", "other"}}
    assert nearest_tests({"middle"}, importers, tests) == {"test_middle.py"}
    assert nearest_tests({"leaf"}, importers, tests) == {"test_middle.py"}
    assert nearest_tests({"unknown"}, importers, tests) == set()


def test_changed_files_are_tested_by_import_and_by_name() -> None:
    joint = selected_tests(["moefabric/planner/joint.py"])
    assert "tests/unit/planner/test_joint.py" in joint
    assert "tests/unit/planner/test_matching.py" not in joint
    assert "tests/unit/ocs/test_device.py" in selected_tests(["emulator/ocs/physics.py"])
    assert "tests/unit/packaging/test_lock.py" in selected_tests(["packaging/requirements.lock"])
    itself = "tests/unit/test_quick.py"
    assert itself in selected_tests([itself])
