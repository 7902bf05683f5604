"""What all commands share: names of fabrics, `--json`, sections and examples of the help."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from moefabric.api.lab import Lab, LightChange
from moefabric.core.errors import FabricError
from moefabric.core.transition import ReconfigurationPhases
from moefabric.runtime.run_directory import RunDirectory
from moefabric.ui.cli import fabric as fabric_commands
from moefabric.ui.cli.command import CliCommand, JsonOption
from moefabric.ui.cli.main import SECTIONS, main
from moefabric.ui.dashboard import server
from tests.support.paths import EXAMPLES
from tests.support.run_folders import running

EXPERIMENT = str(EXAMPLES / "ci/experiment.yaml")
DEMAND = str(EXAMPLES / "data/demand-4x4.json")
OF_STUDIES = {"frontier", "oracle", "paper", "system"}


def moefabric(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def commands(
    group: click.Group = main, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands with their words, those of groups too."""
    context = group.make_context("moefabric", ["doctor"])
    for name in group.list_commands(context):
        if group is main and name in OF_STUDIES:
            continue
        command = group.get_command(context, name)
        assert command is not None
        yield (*words, name), command
        if isinstance(command, click.Group):
            for child, one in command.commands.items():
                yield (*words, name, child), one


ALL = dict(commands())
ON_FABRICS = [
    words for words, command in ALL.items() if any("--name" in one.opts for one in command.params)
]


def parsed(*words: str) -> dict[str, Any]:
    """Return the values of the last command of some words."""
    command: click.Command = main
    context = main.make_context("moefabric", list(words))
    rest = list(words)
    while isinstance(command, click.Group):
        if command is not main:
            context = command.make_context(command.name, rest, parent=context)
            rest = [*context._protected_args, *context.args]
            if not rest:
                return context.params
        _, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
    return command.make_context(command.name, rest, parent=context).params


# --- names of fabrics ----------------------------------------------------------------------------

NAMED = [
    ["inspect"],
    ["check"],
    ["events"],
    ["logs", "--level", "warning"],
    ["hostfile", "--slots", "2"],
    ["down"],
    ["dashboard", "--listen", "127.0.0.1:0"],
    ["metrics", "--once"],
    ["calibrate", "ocs"],
    ["ocs", "ocs0"],
    ["light", "s0~s1"],
    ["exec", "s0", "--", "true", "lab"],
    ["capture", "-w", "lab", "s0/o0"],
    ["mpirun", "-n", "2", "--", "./program", "--name", "x"],
    ["torchrun", "--tag", "train.py", "--name", "x"],
    ["perf", "alltoall"],
    ["replay", "trace.et"],
    ["fault", "list"],
    ["fault", "nic", "s0/o0"],
    ["fault", "ocs", "port", "s0/o0"],
]


@pytest.mark.parametrize("words", NAMED, ids=" ".join)
@pytest.mark.usefixtures("two_running")
def test_the_first_word_of_a_command_names_a_fabric(words: list[str]) -> None:
    plain = parsed(*words)
    command = 2 if words[:2] == ["calibrate", "ocs"] else 1
    named = parsed(*words[:command], "lab", *words[command:])
    assert named.pop("name") == "lab"
    assert plain.pop("name", None) is None
    if words[0] not in {"perf", "replay"}:
        assert named == plain


@pytest.mark.usefixtures("two_running")
def test_every_command_on_fabrics_takes_the_name_in_three_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rest = {"exec": ["s0", "true"], "capture": ["s0"], "perf": ["alltoall"], "replay": ["t"]}
    rest |= {"mpirun": ["p"], "torchrun": ["p"], "gpu": ["s0/1"], "controller": ["r0"]}
    assert len(ON_FABRICS) >= 20
    for words in ON_FABRICS:
        more = rest.get(words[-1], [])
        assert parsed(*words, "--name", "other", *more)["name"] == "other", words
        assert parsed(*words, "other", *more)["name"] == "other", words
        monkeypatch.setenv("MOEFABRIC_FABRIC", "other")
        assert parsed(*words, *more)["name"] == "other", words
        assert parsed(*words, "lab", *more)["name"] == "lab", words
        monkeypatch.delenv("MOEFABRIC_FABRIC")


@pytest.mark.usefixtures("two_running")
def test_name_of_a_group_is_that_of_its_commands() -> None:
    assert parsed("fault", "--name", "other", "nic", "s0/o0")["name"] == "other"
    assert parsed("fault", "--name", "other", "nic", "lab", "s0/o0")["name"] == "lab"


@pytest.mark.usefixtures("two_running")
def test_a_word_is_no_fabric_if_a_name_is_given_or_none_of_that_name_runs() -> None:
    assert parsed("exec", "--name", "other", "lab", "true")["server"] == "lab"
    values = parsed("exec", "s0", "lab")
    assert (values["name"], values["server"], values["command"]) == (None, "s0", ("lab",))
    refused = moefabric("inspect", "lab", "--name", "other")
    assert refused.exit_code == 2
    assert "the fabric is named twice: lab, and by --name" in refused.output


def test_logs_of_a_process_name_the_option(two_running: Path) -> None:
    (two_running / "lab/log/ocs0.jsonl").touch()
    assert "ocs0 is not up: " in (refused := moefabric("logs", "ocs0").output)
    assert refused.endswith("; --process ocs0 shows this process\n")


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_dashboard_that_others_reach_warns_of_plain_http(
    monkeypatch: pytest.MonkeyPatch, host: str, *, warns: bool
) -> None:
    monkeypatch.setattr(server, "serve", lambda *_: None)
    shown = moefabric("dashboard", "--listen", f"{host}:0")
    assert ("plain HTTP: who sees packets can read the token" in shown.output) == warns


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["up", "a.yaml", "--set", "nics.optical", "3"], "nics.optical=VALUE is one word")],
)
def test_value_of_an_option_that_is_none_is_wrong_usage(words: list[str], expected: str) -> None:
    refused = moefabric(*words)
    assert refused.exit_code == 2
    assert expected in refused.output


@pytest.mark.usefixtures("two_running")
def test_a_fabric_that_is_not_up_is_an_error_with_those_that_are() -> None:
    message = "tpyo is not up: start it with `moefabric up FABRIC.yaml`; lab, other are up"
    for words in (["inspect", "tpyo"], ["logs", "tpyo"], ["exec", "--name", "tpyo", "s0", "true"]):
        refused = moefabric(*words)
        assert (refused.exit_code, refused.output) == (1, f"moefabric: {message}\n"), words


@pytest.mark.usefixtures("two_running")
@pytest.mark.parametrize(
    "words",
    [
        ["fault", "tpyo", "nic", "s0/o0"], ["dashboard", "tpyo"], ["metrics", "tpyo", "--once"],
        ["replay", "tpyo", "traces/et"], ["replay", "--runs", "1", "tpyo", "traces/et"],
        ["perf", "tpyo", "alltoall"], ["torchrun", "tpyo", __file__, "--steps", "10"],
    ],
)  # fmt: skip
def test_a_mistyped_name_before_other_words_is_one_of_a_fabric(words: list[str]) -> None:
    message = "tpyo is not up: start it with `moefabric up FABRIC.yaml`; lab, other are up"
    refused = moefabric(*words)
    assert (refused.exit_code, refused.output) == (1, f"moefabric: {message}\n")


@pytest.mark.usefixtures("two_running")
def test_a_word_that_may_be_a_file_is_no_name() -> None:
    for words in (["replay", "tpyo"], ["torchrun", "tpyo", "--steps", "10"]):
        assert "no such file" in moefabric(*words).output
    assert "unexpected extra argument" in moefabric("replay", __file__, "traces/et").output


@pytest.mark.usefixtures("two_running")
def test_a_name_with_a_slip_is_told_which_are_meant() -> None:
    assert moefabric("inspect", "othre").output.endswith("lab, other are up; did you mean other?\n")
    assert moefabric("exec", "othre", "s0", "true").output.endswith("did you mean other?\n")
    assert "moefabric: s9 is none of s0, s1, s2, s3, leaf0" in moefabric("exec", "s9", "id").output
    assert moefabric("fault", "nci").output.endswith("lab, other are up; did you mean nic?\n")
    kinds = "list, nic, ocs-port, server, gpu, controller, ocs\n"
    assert moefabric("fault", "lab", "foo").output.endswith(f"Error: foo is none of {kinds}")


@pytest.mark.parametrize(
    "words",
    [
        ["light", "tpyo", "s0~s1"], ["ocs", "tpyo"], ["fault", "tpyo"], ["capture", "tpyo", "s0"],
        ["exec", "tpyo", "s0", "true"], ["fault", "nic", "tpyo", "s0/o0"], ["fault", "gpu", "tpyo"],
    ],
)  # fmt: skip
def test_a_word_that_is_neither_a_part_nor_a_fabric_is_told_so(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, monkeypatch, ["lab"]):
        refused = moefabric(*words)
    assert "; no fabric tpyo is up either: lab is up\n" in refused.output


def test_a_part_of_the_fabric_is_not_taken_for_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, monkeypatch, ["lab"]):
        for words in (["ocs", "s0"], ["ocs"], ["fault", "controller", "eps"], ["capture", "leaf0"]):
            assert "no fabric" not in moefabric(*words).output
        (tmp_path / "lab/fabric.json").unlink(missing_ok=True)
        assert "no fabric" not in moefabric("ocs", "tpyo", "--name", "lab").output


@pytest.mark.usefixtures("two_running")
def test_python_finds_no_fabric_that_is_not_up() -> None:
    with pytest.raises(FabricError, match=r"^tpyo is not up.*lab, other are up$"):
        Lab.running("tpyo")


def test_light_none_removes_all_circuits(monkeypatch: pytest.MonkeyPatch) -> None:
    regions = list[str | None]()

    class Lit:
        def dark(self, *, region: str | None) -> LightChange:
            regions.append(region)
            phases = ReconfigurationPhases()
            return LightChange(circuits_before=[], circuits_after=[], dark=[], phases=phases)

    monkeypatch.setattr(fabric_commands, "running_lab", lambda _name: Lit())
    assert moefabric("light", "--none", "--region", "r1").output.startswith("lit: no circuits\n")
    assert regions == ["r1"]


def test_light_takes_one_of_circuits_demand_and_none() -> None:
    both = moefabric("light", "s0~s1", "--none")
    assert (both.exit_code, "either circuits, --demand or --none" in both.output) == (2, True)


@pytest.mark.usefixtures("two_running")
def test_several_fabrics_name_the_three_ways_to_choose() -> None:
    refused = moefabric("inspect")
    ways = "by its NAME, by `--name NAME` or by MOEFABRIC_FABRIC"
    assert refused.output == f"moefabric: lab, other are up: choose one {ways}\n"


@pytest.mark.usefixtures("two_running")
def test_fabric_of_a_file_excludes_a_name_but_not_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = moefabric("perf", "lab", "barrier", "--spec", "nowhere.yaml")
    assert (both.exit_code, "either --spec or the NAME" in both.output) == (2, True)
    monkeypatch.setenv("MOEFABRIC_FABRIC", "lab")
    alone = moefabric("perf", "barrier", "--spec", "nowhere.yaml")
    assert alone.output == "moefabric: nowhere.yaml: No such file or directory\n"


@pytest.mark.parametrize("words", [["perf", "alltoall"], ["replay", "trace.et"]], ids=" ".join)
def test_policy_of_messages_needs_its_way_and_exists(words: list[str]) -> None:
    for way in ([], ["--via", "light"]):
        refused = moefabric(*words, *way, "--policy", "mixnet")
        assert refused.exit_code == 2, refused.output
        assert "--policy mixnet is for --via policy" in refused.output
    unknown = moefabric(*words, "--via", "policy", "--policy", "mixnett")
    assert unknown.exit_code == 1
    assert unknown.output.startswith("moefabric: policy: 'mixnett' is not one of ")


def test_usage_shows_the_name() -> None:
    assert "Usage: main inspect [OPTIONS] [NAME]\n" in moefabric("inspect", "--help").output
    assert "exec [OPTIONS] [NAME] SERVER COMMAND..." in moefabric("exec", "--help").output


@pytest.mark.usefixtures("two_running")
def test_down_of_a_fabric_that_is_not_up_says_which_are() -> None:
    result = moefabric("down", "tpyo")
    assert (result.exit_code, result.output) == (0, "tpyo: was not up; lab, other are up\n")


def test_list_shows_age_owner_servers_and_user(two_running: Path) -> None:
    result = moefabric("list")
    assert result.exit_code == 0
    heading, lab, other = result.output.splitlines()
    assert heading.split("  ")[0] == "name"
    assert lab.split()[0] == "lab"
    assert lab.split()[-1] == "4", "it has no user"
    assert other.startswith("other")
    (first, _) = json.loads(moefabric("list", "--json").output)
    assert (first["name"], first["servers"], first["pid"], first["run"]) == ("lab", 4, None, "")
    assert 0 <= first["age_s"] < 60
    RunDirectory(two_running / "lab").wiring_file.unlink()
    assert "coming up" in moefabric("list").output


def test_list_of_no_fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEFABRIC_RUN_DIR", str(tmp_path))
    assert moefabric("list").output == "no fabric is up\n"
    assert moefabric("list", "--json").output == "[]\n"


@pytest.mark.usefixtures("two_running")
def test_capture_into_no_folder_says_how_to_make_it(tmp_path: Path) -> None:
    file = tmp_path / "none" / "deeper" / "x.pcap"
    refused = moefabric("capture", "lab", "s0/o0", "-w", str(file))
    assert (refused.exit_code, f"mkdir -p {file.parent}" in refused.output) == (2, True)


# --- JSON ----------------------------------------------------------------------------------------


def test_json_into_no_folder_says_how_to_make_it(tmp_path: Path) -> None:
    file = tmp_path / "none" / "deeper" / "x.json"
    refused = moefabric("cost", f"--json={file}")
    assert (refused.exit_code, f"mkdir -p {file.parent}" in refused.output) == (2, True)


def test_json_is_printed_or_written(tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    printed = moefabric("cost", "--json")
    for words in (["--json", str(file)], [f"--json={file}"]):
        written = moefabric("cost", *words)
        assert written.output.startswith("networks of 128 servers")
        assert file.read_text() == printed.output
        file.unlink()


@pytest.mark.parametrize("command", [["predict", EXPERIMENT], ["plan", "--demand", DEMAND]])
def test_prediction_and_plan_write_json(command: list[str], tmp_path: Path) -> None:
    words = [*command, "--degree", "3"] if command[0] == "plan" else command
    file = tmp_path / "it.json"
    text = moefabric(*words).output
    assert moefabric(*words, "--json", str(file)).output == text
    assert json.loads(file.read_text()) == json.loads(moefabric(*words, "--json").output)


def test_word_behind_json_is_the_experiment_as_before() -> None:
    values = parsed("predict", "--json", EXPERIMENT)
    assert (values["as_json"], values["experiment"]) == (Path("-"), Path(EXPERIMENT))
    values = parsed("compare", "--json", "before.json", "after.json")
    assert (values["as_json"], values["after"]) == (Path("-"), Path("after.json"))


def test_run_prints_json_without_a_file() -> None:
    assert parsed("run", EXPERIMENT, "--json")["json_file"] == Path("-")
    assert parsed("run", EXPERIMENT, "--json", "--flows")["json_file"] == Path("-")
    assert parsed("run", "--json", "out/x", EXPERIMENT)["json_file"] == Path("out/x")


def test_json_behind_a_double_dash_is_the_programs() -> None:
    assert parsed("exec", "s0", "--", "iperf3", "--json")["command"] == ("iperf3", "--json")


def test_every_json_option_prints_without_a_value() -> None:
    plain = [
        words
        for words, command in ALL.items()
        for option in command.params
        if "--json" in option.opts and not isinstance(option, JsonOption)
    ]
    assert plain == []


# --- help ----------------------------------------------------------------------------------------


def test_help_groups_all_commands() -> None:
    text = moefabric("--help").output
    titles = [line.rstrip(":") for line in text.splitlines() if line.endswith(":")]
    sections = ["Options", "Experiments", "Fabrics", "Traffic", "Inputs", "This machine"]
    assert titles[: len(sections)] == sections
    for words in ALL:
        assert f"\n  {words[0]} " in text


@pytest.mark.usefixtures("two_running")
def test_every_command_has_two_examples_that_parse() -> None:
    shown = 0
    for words, command in ALL.items():
        examples = getattr(command, "examples", ())
        assert len(examples) >= 2, words
        for example in examples:
            assert f"  {example}\n" in moefabric(*words, "--help").output
            line = example.partition(" > ")[0].removeprefix('eval "$(').removesuffix(')"')
            program, *arguments = shlex.split(line)
            assert program == "moefabric"
            assert tuple(arguments[: len(words)]) == words
            assert parsed(*arguments).get("name", "lab") in {None, "lab", "best-pairs"}
            shown += 1
    assert shown >= 2 * len(ALL)


def test_commands_have_the_grammar() -> None:
    plain = [w for w, c in ALL.items() if not isinstance(c, (CliCommand, click.Group))]
    assert plain == []


@pytest.mark.parametrize("name", ["trace", "policy"])
def test_line_of_a_group_in_the_help_names_its_commands(name: str) -> None:
    """All but those that only show something, and no other."""
    group = main.get_command(click.Context(main), name)
    assert isinstance(group, click.Group)
    [line] = [names[name][1] for names in SECTIONS.values() if name in names]
    verbs = {"new": "write", "info": "read"}
    named = {verbs.get(command, command) for command in group.commands}
    assert set(re.findall(r"\w+", line.lower())) >= named
    assert "draw" not in line
