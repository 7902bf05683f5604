"""Trains a small Mixture-of-Experts transformer on the bytes of a text, in plain PyTorch.

    torchrun --nproc-per-node 8 examples/train/train.py --steps 40

The model is built as Mixtral is: RMSNorm, attention with rotary positions, and in each layer
experts of which a gate chooses some for every token. Every rank reads its own samples. Experts are
spread over the ranks: tokens travel to their experts and back by all-to-alls. All other parameters
are on every rank, and their gradients are summed over the ranks.

Equal seeds give equal losses, to the last bit. `--routes FILE` writes the experts of each token
in the last steps to a NumPy archive.
"""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

BYTES = 256
HEAD = 32
"""Width of an attention head."""
BALANCE = 0.01
"""Weight of the auxiliary loss that keeps the load of experts even."""


def exchange(rows: Tensor, sends: list[int], receives: list[int]) -> Tensor:
    """Send consecutive rows to the ranks, `sends[rank]` each, and return those that arrive."""
    received = rows.new_empty(sum(receives), rows.shape[1])
    dist.all_to_all_single(received, rows.contiguous(), receives, sends)
    return received


class Exchange(torch.autograd.Function):
    """`exchange` whose backward pass sends gradients the opposite way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sends: list[int], receives: list[int]) -> Tensor:
        ctx.sends, ctx.receives = sends, receives
        return exchange(rows, sends, receives)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None, None]:
        return exchange(gradients, ctx.receives, ctx.sends), None, None


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, hidden: int, sequence: int) -> None:
        super().__init__()
        self.project = nn.Linear(hidden, 3 * hidden, bias=False)
        self.output = nn.Linear(hidden, hidden, bias=False)
        frequencies = 10_000 ** -(torch.arange(0, HEAD, 2) / HEAD)
        angles = torch.arange(sequence)[:, None] * frequencies
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, sequence, hidden] for x of the same shape."""
        heads = self.project(x).unflatten(-1, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        queries, keys, values = heads  # each [batch, head, sequence, HEAD]
        queries, keys = self.rotated(queries), self.rotated(keys)
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values.to(keys.dtype), is_causal=True
        )
        return self.output(mixed.transpose(1, 2).flatten(2))

    def rotated(self, x: Tensor) -> Tensor:
        """Turn each pair of numbers by an angle that grows with the position."""
        a, b = x.chunk(2, dim=-1)
        cosine, sine = self.cosine, self.sine
        return torch.cat((a * cosine - b * sine, a * sine + b * cosine), dim=-1)


class Experts(nn.Module):
    """A gate, and SwiGLU experts of which this rank holds its share."""

    def __init__(self, args: argparse.Namespace, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, self.choices = args.hidden, args.choices
        self.ranks, self.own = dist.get_world_size(), args.experts // dist.get_world_size()
        self.dtype = dtype  # of the tokens that travel
        self.routes: list[tuple[Tensor, Tensor]] | None = None  # experts and weights, if recorded
        self.gate = nn.Linear(hidden, args.experts, bias=False)
        width = args.width or 7 * hidden // 2  # as in Mixtral
        self.into = nn.Parameter(torch.empty(self.own, hidden, 2 * width))
        self.out = nn.Parameter(torch.empty(self.own, width, hidden))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the chosen experts make of tokens [token, hidden], and the auxiliary loss."""
        shares = self.gate(x).softmax(-1, dtype=self.gate.weight.dtype)
        weights, chosen = shares.topk(self.choices)
        weights = weights / weights.sum(-1, keepdim=True)
        if self.routes is not None:
            self.routes.append((chosen, weights.detach()))

        # Rows of the tokens for rank 0's experts come first. Ranks tell each other how many.
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=shares.shape[1])
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        sends = counts.view(self.ranks, -1).sum(1).tolist()
        receives = arriving.view(self.ranks, -1).sum(1).tolist()

        dispatched = Exchange.apply(x[order // self.choices].to(self.dtype), sends, receives)
        computed = self.compute(dispatched, arriving.view(self.ranks, -1))
        combined = Exchange.apply(computed, receives, sends)

        choices = combined[order.argsort()].unflatten(0, (-1, self.choices))
        loads = counts / counts.sum()
        balance = (loads * shares.mean(0)).sum() * len(loads)
        return (choices * weights[..., None]).sum(1), balance

    def compute(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Run this rank's experts on rows that are ordered by (sender, expert).

        Args:
            rows: Tokens [row, hidden].
            counts: Rows [sender, expert].
        """
        expert = torch.arange(self.own).repeat(self.ranks).repeat_interleave(counts.flatten())
        order = expert.argsort(stable=True)
        parts = rows[order].split(counts.sum(0).tolist())
        results = []
        for part, into, out in zip(parts, self.into, self.out, strict=True):
            gates, values = (part @ into).chunk(2, dim=-1)
            results.append((functional.silu(gates) * values) @ out)
        return torch.cat(results)[order.argsort()]


class Layer(nn.Module):
    """Attention and experts, each beside a residual connection."""

    def __init__(self, args: argparse.Namespace, dtype: torch.dtype) -> None:
        super().__init__()
        hidden = args.hidden
        self.attention_norm, self.attention = Norm(hidden), Attention(hidden, args.sequence)
        self.experts_norm, self.experts = Norm(hidden), Experts(args, dtype)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer of x [batch, sequence, hidden], and the auxiliary loss."""
        x = x + self.attention(self.attention_norm(x))
        y, balance = self.experts(self.experts_norm(x).flatten(0, 1))
        return x + y.view_as(x), balance


class Model(nn.Module):
    """A language model of bytes."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        dtype = getattr(torch, args.dtype)
        self.embedding = nn.Embedding(BYTES, args.hidden)
        self.layers = nn.ModuleList(Layer(args, dtype) for _ in range(args.layers))
        self.norm = Norm(args.hidden)
        self.head = nn.Linear(args.hidden, BYTES, bias=False)
        self.initialise(args.seed)

    def initialise(self, seed: int) -> None:
        """Draw all weights. They are the same however many ranks there are."""
        random = torch.Generator().manual_seed(seed)
        rank = dist.get_rank()
        for name, parameter in self.named_parameters():
            if is_expert(name):
                own, *shape = parameter.shape
                everything = torch.randn(own * dist.get_world_size(), *shape, generator=random)
                parameter.data = everything[rank * own : (rank + 1) * own].clone()
                parameter.data *= shape[0] ** -0.5
            elif parameter.dim() == 2:
                deviation = 0.02 if BYTES in parameter.shape else parameter.shape[1] ** -0.5
                parameter.data = torch.randn(parameter.shape, generator=random) * deviation

    def forward(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [..., BYTES] for text [batch, sequence], and the auxiliary loss."""
        x, balances = self.embedding(text), []
        for layer in self.layers:
            x, balance = layer(x)
            balances.append(balance)
        logits = self.head(self.norm(x)).to(x.dtype)
        return logits, torch.stack(balances).mean()


def is_expert(name: str) -> bool:
    """Return whether a parameter belongs to an expert, which only one rank has."""
    return name.endswith((".into", ".out"))


def sample(text: Tensor, step: int, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Return this rank's bytes of a step and the bytes after them, [batch, sequence] each."""
    number = ((args.seed << 24) + step) * dist.get_world_size() + dist.get_rank()
    random = torch.Generator().manual_seed(number)
    starts = torch.randint(len(text) - args.sequence, (args.batch,), generator=random)
    pieces = text[starts[:, None] + torch.arange(args.sequence + 1)]
    return pieces[:, :-1], pieces[:, 1:]


def train_step(
    model: Model, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> float:
    """Make one step and return the loss over the samples of all ranks."""
    bfloat = model.layers[0].experts.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat):
        logits, balance = model(inputs)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    # The mean over ranks: experts get the gradients of all ranks' tokens by the all-to-alls.
    optimizer.zero_grad()
    ((loss + BALANCE * balance) / dist.get_world_size()).backward()
    shared = [p.grad for name, p in model.named_parameters() if not is_expert(name)]
    bucket = torch.cat([grad.flatten() for grad in shared] + [loss.detach()[None]])
    dist.all_reduce(bucket)
    sizes = [grad.numel() for grad in shared]
    for grad, total in zip(shared, bucket[:-1].split(sizes), strict=True):
        grad.copy_(total.view_as(grad))
    optimizer.step()
    return bucket[-1].item() / dist.get_world_size()


@dataclass(frozen=True)
class Checkpoint:
    """Files of this rank with the last two states that it has saved.

    When a job ends, some ranks may have saved a state that others haven't. All have the one before.
    """

    name: str

    def path(self, step: int) -> Path:
        """Return the file of the state after so many steps."""
        return Path(f"{self.name}-step{step}-rank{dist.get_rank()}.pt")

    def steps(self) -> list[int]:
        """Return the numbers of steps after which this rank has a state."""
        pattern = re.compile(rf".*-step(\d+)-rank{dist.get_rank()}\.pt")
        files = Path(self.name).parent.glob(f"{Path(self.name).name}-step*.pt")
        return sorted(int(match[1]) for file in files if (match := pattern.fullmatch(str(file))))

    def save(self, step: int, model: Model, optimizer: torch.optim.Optimizer) -> None:
        """Write the state after so many steps, whole or not at all."""
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        written = self.path(step).with_suffix(".part")
        torch.save(state, written)
        written.replace(self.path(step))
        for old in self.steps()[:-2]:
            self.path(old).unlink()

    def load(self, model: Model, optimizer: torch.optim.Optimizer) -> int:
        """Read the newest state that all ranks have; return its steps, 0 if there is none."""
        known: list[list[int]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(known, self.steps())
        step = max(set.intersection(*map(set, known)), default=0)
        if step:
            state = torch.load(self.path(step))
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        return step


def write_routes(model: Model, file: Path) -> None:
    """Write the recorded routes of all ranks: `routes`, and `scores` as parts of 255, most first.

    Both are [step, layer, rank, token, choice].
    """
    recorded = [layer.experts.routes or [] for layer in model.layers]
    own = [
        torch.stack([torch.stack([step[n] for step in layer]) for layer in recorded], dim=1)
        for n in (0, 1)
    ]
    known: list[list[Tensor]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(known, own)
    routes, scores = (torch.stack(ranks, dim=2).numpy() for ranks in zip(*known, strict=True))
    if dist.get_rank() == 0:
        small = np.min_scalar_type(int(routes.max()))
        parts = np.rint(scores * 255).astype(np.uint8)
        np.savez_compressed(file, routes=routes.astype(small), scores=parts)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--steps", type=int, default=40)
    add("--layers", type=int, default=3)
    add("--experts", type=int, default=8, help="in each layer, a multiple of the ranks")
    add("--choices", type=int, default=2, help="experts of a token")
    add("--width", type=int, help="inner width of an expert, 3.5 times the token's if not given")
    add("--hidden", type=int, default=128, help=f"width of a token, a multiple of {HEAD}")
    add("--sequence", type=int, default=128, help="bytes of a sample")
    add("--batch", type=int, default=4, help="samples of a rank in a step")
    add("--rate", type=float, default=3e-3, help="learning rate after 10 steps")
    add("--seed", type=int, default=0)
    add("--text", type=Path, default=Path(__file__).with_name("text.txt"))
    add("--dtype", choices=["float32", "bfloat16", "float64"], default="float32")
    add("--backend", default="gloo", help="of torch.distributed")
    add("--checkpoint", metavar="NAME", help="start of the names of this rank's checkpoints")
    add("--checkpoint-every", type=int, default=20, metavar="STEPS")
    add("--routes", type=Path, metavar="FILE", help="archive of the experts of single tokens")
    add("--routes-steps", type=int, default=4, metavar="STEPS", help="in the archive")
    return parser.parse_args()


def main() -> None:
    """Train."""
    args = arguments()
    if args.hidden % HEAD:
        raise SystemExit(f"--hidden: {args.hidden} is no multiple of {HEAD}, a head's width")
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64 if args.dtype == "float64" else torch.float32)
    dist.init_process_group(args.backend)
    if args.experts % dist.get_world_size():
        raise SystemExit(
            f"--experts: {args.experts} is no multiple of {dist.get_world_size()} ranks"
        )
    text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long()
    model = Model(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.95))
    saves = args.checkpoint and args.checkpoint_every
    checkpoint = Checkpoint(args.checkpoint) if saves else None
    first = checkpoint.load(model, optimizer) if checkpoint else 0
    for step in range(first, args.steps):
        if args.routes and step == args.steps - args.routes_steps:
            for layer in model.layers:
                layer.experts.routes = []
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1.0, (step + 1) / 10)
        loss = train_step(model, optimizer, *sample(text, step, args))
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss!r}", flush=True)
        if checkpoint and (step + 1) % args.checkpoint_every == 0:
            checkpoint.save(step + 1, model, optimizer)
    if args.routes:
        write_routes(model, args.routes)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
