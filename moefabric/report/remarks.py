"""Remarks in sentences: modelled parts, spines and queues of a fabric, losses of several."""

from collections.abc import Iterator, Sequence
from typing import Final

from moefabric.report.formatting import counted, percentage, printable
from moefabric.report.summary import FabricSummary
from moefabric.results.model import FabricPrediction, FabricResult
from moefabric.results.parts import HybridResult, QueueDrops

_SHOWN_PORTS: Final = 3
FUTURE_TOTAL: Final = "future total"
"""`knows` of a policy that gets the sum of all demands of a job before it begins."""


def remarks(fabric: FabricSummary) -> Iterator[str]:
    """Yield a line each about modelled parts, known demands, spines and queues, if any."""
    result = fabric.result
    if result.hybrid is not None:
        yield hybrid_text(result.hybrid)
    if result.knows == FUTURE_TOTAL:
        yield "circuits are set once for the sum of all demands of the job, known before it begins"
    if result.spines is not None:
        yield spine_text(result)
    if result.training is not None and result.iterations and not result.training.losses:
        yield "rank 0 printed no line that train.loss describes, so that there are no losses"
    if result.queues is not None:
        yield queue_text(result.queues)


def circuit_lines(entries: Sequence[FabricResult] | Sequence[FabricPrediction]) -> Iterator[str]:
    """Yield a line for each group of fabrics with the same circuits in all all-to-alls.

    A fabric whose circuits could not move, because they are a full mesh, is named also if it is
    alone. Each further group is compared with the first.
    """
    yield from _groups(entries)
    differing = [entry for entry in entries if entry.other_circuits]
    if not differing:
        return
    first, *rest = differing
    compared = {*first.same_circuits}
    for entry in rest:
        if entry.fabric in compared or entry.fabric not in first.other_circuits:
            continue
        compared.update(entry.same_circuits)
        different, count = first.other_circuits[entry.fabric]
        noun = "all-to-alls" if isinstance(entry, FabricPrediction) else "requests for circuits"
        names = ", ".join(map(printable, (entry.fabric, *entry.same_circuits)))
        often = f"{different:,} of {count:,} {noun}" if count > 1 else "all all-to-alls"
        yield f"{names}: other circuits than {printable(first.fabric)} in {often}"


def _groups(entries: Sequence[FabricResult] | Sequence[FabricPrediction]) -> Iterator[str]:
    named = set[str]()
    for entry in entries:
        if entry.fabric in named or not (entry.same_circuits or entry.full_mesh):
            continue
        names = [entry.fabric, *entry.same_circuits]
        named.update(names)
        line = f"{', '.join(map(printable, names))}: "
        if len(names) > 1:
            line += "the same circuits as each other in every all-to-all"
        if entry.full_mesh:
            sizes = [len(servers) for servers in entry.wiring.regions.values()]
            servers = counted(max(sizes), "server") if sizes else "regions' servers"
            nics = counted(entry.wiring.optical_nics, "optical NIC")
            line += ", and " if len(names) > 1 else ""
            line += f"once lit, none moves: {servers} with {nics} each are a full mesh"
        yield line


def moving_lines(fabrics: Sequence[FabricSummary]) -> Iterator[str]:
    """Yield what moving gained and cost each fabric, beside the first one whose circuits stay."""
    trusted = [fabric for fabric in fabrics if not fabric.is_invalid and fabric["all_to_all_s"]]
    still = next((one for one in trusted if one.result.circuits and not one["moves"]), None)
    for fabric in trusted:
        if still is None or not fabric["moves"]:
            continue
        own, others = fabric.text("all_to_all_s"), still.text("all_to_all_s")
        line = (
            f"{fabric.name}: circuits moved in {fabric.change_count} requests; an all-to-all took "
        )
        line += f"{own}, and {others} on {still.name}, whose circuits stay"
        if fabric["dark_s"]:
            line += f"; circuits were dark for {fabric.text('dark_s')} of an iteration"
        yield line


def spine_text(result: FabricResult) -> str:
    """Return a line such as `61% of all bytes cross spines (dispatch 44%, forward transfer 100%)`.

    It names what was counted at the uplinks, too. The fabric has spines.
    """
    assert result.spines is not None
    kinds: dict[str, list[int]] = {}
    for sent in (*result.collectives, *result.transfers):
        total = kinds.setdefault(sent.kind, [0, 0])
        total[0] += sent.bytes_planned_by_spines
        total[1] += sent.bytes
    parts = ", ".join(f"{printable(k)} {percentage(c / max(1, b))}" for k, (c, b) in kinds.items())
    line = f"{percentage(result.spines.share)} of all bytes cross spines"
    if kinds:
        line += f" ({parts})"
    payload, planned = result.spines.counted_bytes, result.spines.bytes
    if payload is not None and planned:
        line += f"; the uplinks counted {payload / planned:.2%} of them"
    return line


def hybrid_text(hybrid: HybridResult) -> str:
    """Return a line such as `r1 is emulated in a cluster of 8 regions and 256 GPUs`.

    It says what was modelled, and whether background flows kept to the model's rates.
    """
    names = ", ".join(map(printable, hybrid.emulated))
    verb = "is" if len(hybrid.emulated) == 1 else "are"
    parts = {"region": hybrid.regions, "server": hybrid.servers, "GPU": hybrid.gpus}
    regions, servers, gpus = (counted(count, noun) for noun, count in parts.items())
    line = f"{names} {verb} emulated in a modelled cluster of {regions}, {servers} and {gpus}"
    if hybrid.remark:
        line += f"; {printable(hybrid.remark)}"
    if hybrid.background == "none":
        return f"{line}; no background flows"
    flows = f"{hybrid.flows:,} background flows ({printable(hybrid.background)})"
    line += f"; {flows} between {len(hybrid.peers)} servers that stand for the others"
    if hybrid.rate_error_p50 is not None and hybrid.rate_error_p5 is not None:
        p50, p5 = hybrid.rate_error_p50, hybrid.rate_error_p5
        line += f", at the model's rates {p50:+.1%} (median) and {p5:+.1%} (5th percentile)"
    return line


def queue_text(queues: QueueDrops) -> str:
    """Return a line such as `queues of 100 packets dropped 12 of 4,000 packets, 9 at s0/e0`."""
    if not queues.drops:
        return f"queues of {printable(queues.limit)} dropped no packet"
    offered = queues.packets + queues.drops
    share = f"{queues.drops:,} of {offered:,} packets ({queues.drops / offered:.2%})"
    worst = "; ".join(f"{p.drops:,} at {printable(p.port)}" for p in queues.ports[:_SHOWN_PORTS])
    return f"queues of {printable(queues.limit)} dropped {share}: {worst}"


def agreement(fabrics: Sequence[FabricSummary]) -> tuple[str, bool]:
    """Return whether a program had equal losses on fabrics, in a sentence and as a value.

    Losses are compared as they were printed, in full precision. An iteration that a fabric lacks is
    a difference.
    """
    trained = [(f.name, f.result.training.losses) for f in fabrics if f.result.training]
    printed = {name: {one.iteration: one.text for one in losses} for name, losses in trained}
    first = next(iter(printed))
    for iteration in sorted({number for losses in printed.values() for number in losses}):
        texts = {name: losses.get(iteration, "none") for name, losses in printed.items()}
        for name, text in texts.items():
            if text != texts[first]:
                place = f"Losses differ from iteration {iteration} on"
                return printable(f"{place}: {first} {texts[first]}, {name} {text}."), False
    iterations = counted(len(trained[0][1]), "iteration")
    if len(trained) == 1:
        return f"There is one fabric, with the losses of {iterations}.", True
    return (
        f"All {len(trained)} fabrics have equal losses in all of {iterations}: rank 0 printed the "
        f"same text, in full precision."
    ), True
