"""Errors have the text that users read."""

from moefabric.core.errors import (
    CommandFailedError,
    MoefabricError,
    RankFailedError,
    SpecError,
    some_of,
)


def test_spec_error_has_a_line_for_each_fault() -> None:
    fault = SpecError([("regions[0].servers", "is missing"), ("", "is empty")])
    assert str(fault) == "regions[0].servers: is missing\nis empty"
    assert fault.errors == (("regions[0].servers", "is missing"), ("", "is empty"))


def test_command_failed_error_has_command_status_and_output() -> None:
    fault = CommandFailedError(
        ["ip", "netns", "add", "s0"], 1, "Cannot create namespace file: File exists\n"
    )
    assert (
        str(fault) == "ip netns add s0 exited 1, saying: Cannot create namespace file: File exists"
    )


def test_command_failed_error_says_that_there_was_no_output() -> None:
    assert str(CommandFailedError(["false"], 1, " \n")) == "false exited 1, saying: nothing"


def test_error_of_a_rank_is_what_python_raised_before_its_threads_abort() -> None:
    lines = [
        "[rank2]: Traceback (most recent call last):",
        '[rank2]:   File "/tmp/fail.py", line 12, in <module>',
        '[rank2]:     raise RuntimeError("loss is NaN")',
        "[rank2]: RuntimeError: loss is NaN",
        "terminate called without an active exception",
        "Fatal Python error: Aborted",
        "",
        "Thread 0x00007f (most recent call first):",
        '  File "/usr/lib/python3/threading.py", line 331 in wait',
        "Extension modules: numpy (total: 1)",
    ]
    aborted = RankFailedError(2, "s2", -6, lines)
    assert str(aborted).endswith("was ended by signal 6, saying: RuntimeError: loss is NaN")
    assert RankFailedError(2, "s2", -6, lines[4:5]).saying == lines[4]
    assert RankFailedError(2, "s2", 1, [*lines[:4], "bye"]).saying == "bye"


def test_every_error_is_a_moefabric_error() -> None:
    assert issubclass(SpecError, MoefabricError)
    assert issubclass(CommandFailedError, MoefabricError)


def test_long_lists_of_names_end_with_the_number_of_those_left_out() -> None:
    names = [f"s{number}" for number in range(26)]
    assert some_of(names[:24]).endswith("s22, s23")
    assert some_of(names).endswith("s22, s23 and 2 more")


def test_rank_without_nccl_names_the_backends_that_servers_have() -> None:
    line = "[rank1]: RuntimeError: Distributed package doesn't have NCCL built in"
    error = RankFailedError(1, "s1", 1, [line])
    assert str(error).endswith("no GPU: init_process_group('gloo'), or 'moefabric'")
