"""`moefabric torchrun`: what it says after a program has ended."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from moefabric.core.exchange import Exchange
from moefabric.execution.programs.exchange_loop import CarriedExchange
from moefabric.ui.cli.main import main


@pytest.mark.parametrize("option", ["--nproc-per-node", "--nproc_per_node"])
def test_ranks_of_a_server_have_both_spellings_of_pytorch(
    monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    counts = list[int]()
    fabric = SimpleNamespace(gpus=8)

    def launched(_command: object, *, ranks_per_server: int, **_: object) -> object:
        counts.append(ranks_per_server)
        return nullcontext(SimpleNamespace(wait=lambda: True))

    lab = SimpleNamespace(wiring=SimpleNamespace(fabric=fabric), launch=launched)
    monkeypatch.setattr("moefabric.ui.cli.launch.running_lab", lambda _name: nullcontext(lab))
    result = CliRunner().invoke(main, ["torchrun", f"{option}=2", __file__])
    assert (result.exit_code, counts) == (0, [2]), result.output


def test_unknown_option_before_the_program_is_not_the_program() -> None:
    result = CliRunner().invoke(main, ["torchrun", "--nnodes=4", __file__])
    assert result.exit_code == 2
    assert "no such option: --nnodes; --servers and --nproc-per-node say where" in result.output


def test_interpreter_before_the_program_is_to_be_left_out() -> None:
    result = CliRunner().invoke(main, ["torchrun", "python3", __file__, "--steps=1"])
    assert result.exit_code == 2
    assert "python3: leave it out, since Python runs PROGRAM" in result.output


@pytest.mark.parametrize("carried", [0, 1])
def test_policy_without_an_all_to_all_names_the_backend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, carried: int
) -> None:
    exchange = Exchange((0, 1), 0, ("s0", "s1"), ((0, 8), (8, 0)), "float32")
    lab = SimpleNamespace(
        wiring=SimpleNamespace(fabric=SimpleNamespace(gpus=8)),
        torchrun=lambda *_, **__: [CarriedExchange(exchange, 1.0)] * carried,
    )
    monkeypatch.setattr("moefabric.ui.cli.launch.running_lab", lambda _name: nullcontext(lab))
    program = tmp_path / "exchange.py"
    program.touch()
    result = CliRunner().invoke(main, ["torchrun", "--policy", "spill", str(program)])
    assert result.exit_code == 0, result.output
    assert f"{carried} all-to-alls of {16 * carried} bytes" in result.output
    assert ("init_process_group('moefabric')" in result.output) is (carried == 0)
