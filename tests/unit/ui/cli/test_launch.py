"""`moefabric torchrun`: what it says after a program has ended."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from moefabric.core.exchange import Exchange
from moefabric.execution.programs.exchange_loop import CarriedExchange
from moefabric.ui.cli.main import main


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
