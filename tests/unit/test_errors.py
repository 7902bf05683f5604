"""Errors read as a person would say them."""

from moefabric.errors import CommandFailedError, MoefabricError, SpecError


def test_every_fault_of_a_spec_is_a_line_with_its_place() -> None:
    fault = SpecError([("regions[0].servers", "is missing"), ("", "is empty")])
    assert str(fault) == "regions[0].servers: is missing\nis empty"
    assert fault.faults == (("regions[0].servers", "is missing"), ("", "is empty"))


def test_a_failed_command_tells_its_whole_story_once() -> None:
    fault = CommandFailedError(["ip", "netns", "add", "s0"], 1, "Cannot create namespace file: File exists\n")
    assert str(fault) == "ip netns add s0 exited 1, saying: Cannot create namespace file: File exists"


def test_a_command_that_failed_silently_is_told_so() -> None:
    assert str(CommandFailedError(["false"], 1, " \n")) == "false exited 1, saying: nothing"


def test_every_fault_is_told_to_the_user_without_a_traceback() -> None:
    assert issubclass(SpecError, MoefabricError)
    assert issubclass(CommandFailedError, MoefabricError)
