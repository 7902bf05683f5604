"""The program of examples/train, on ranks of plain torchrun with gloo."""

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from moefabric.traces.route_files import load_routes

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "examples/train/train.py"
TEXT = ROOT / "examples/train/text.txt"
pytest.importorskip("torch", reason="nightly: needs PyTorch: packaging/setup all")
pytestmark = pytest.mark.nightly
SMALL = ("--hidden", "64", "--layers", "2", "--sequence", "32", "--batch", "2")


def torchrun(ranks: int, *command: object) -> list[str]:
    """Run a program on ranks of this machine and return the lines that it prints."""
    torch_run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torch_run, "--nproc-per-node", str(ranks), *map(str, command)],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def losses(lines: list[str]) -> list[float]:
    """Return the losses of successive steps."""
    words = [line.split() for line in lines]
    assert [word[:3] for word in words] == [["step", str(n), "loss"] for n in range(len(words))]
    return [float(word[3]) for word in words]


@pytest.mark.slow
def test_run_continues_at_newest_common_checkpoint_with_equal_losses(tmp_path: Path) -> None:
    job = (2, PROGRAM, *SMALL, "--steps", 6)
    whole = torchrun(*job)
    saving = (*job, "--checkpoint", tmp_path / "state", "--checkpoint-every", 2)
    assert torchrun(*saving) == whole
    assert len(set(losses(whole))) == 6

    # Rank 1 ended before it saved the last state; rank 0 has saved it.
    (tmp_path / "state-step6-rank1.pt").unlink()
    assert torchrun(*saving) == whole[4:]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        f"state-step{step}-rank{rank}.pt" for step in (4, 6) for rank in range(2)
    ]


@pytest.mark.slow
def test_routes_of_the_last_steps_are_those_of_each_token(tmp_path: Path) -> None:
    file = tmp_path / "routes.npz"
    sizes = ("--experts", 8, "--choices", 3, "--width", 16, "--steps", 3)
    torchrun(2, PROGRAM, *SMALL, *sizes, "--routes", file, "--routes-steps", 2)
    routes = load_routes(file)
    assert routes.experts.shape == (2, 2, 2, 2 * 32, 3)
    assert routes.counts(8).sum(axis=-1).tolist() == [[[192] * 2] * 2] * 2
    assert routes.scores is not None
    assert (abs(routes.scores.sum(axis=-1, dtype=int) - 255) <= 2).all(), "weights sum to 1"


@pytest.mark.slow
def test_gradients_equal_those_of_dense_model() -> None:
    dense = ROOT / "tests/support/dense_training.py"
    arguments = (*SMALL, "--experts", 4, "--dtype", "float64", "--text", TEXT)
    report = json.loads(torchrun(2, dense, PROGRAM, *arguments)[-1])
    assert len(report["deviations"]) == 1 + 3 + 2 * 7
    assert max(report["deviations"].values()) < 1e-12
    # A layer has a dispatch and a combine in each pass. One integer exchange announces them.
    assert report["exchanges"] == {"float": 2 * 4, "integer": 2}


@pytest.mark.slow
def test_loss_falls_below_entropy_of_single_bytes() -> None:
    content = TEXT.read_bytes()
    shares = [count / len(content) for count in Counter(content).values()]
    entropy = -sum(share * math.log(share) for share in shares)
    curve = losses(torchrun(2, PROGRAM, "--steps", 30, "--layers", 2, "--hidden", 64))
    assert curve[0] == pytest.approx(math.log(256), rel=0.02)
    assert min(curve[-5:]) < entropy


def test_width_that_heads_do_not_fill_is_refused_in_one_line() -> None:
    command = [sys.executable, str(PROGRAM), "--hidden", "100"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1
    assert done.stderr == "--hidden: 100 is no multiple of 32, a head's width\n"
