"""Pictures of the study of HybridEP: time over domains, and speed-up over tokens."""

from collections.abc import Mapping, Sequence

from moefabric.api.charts import Axis, curve, document_picture, plot
from moefabric_studies.systems.hybrid_ep.bench import Candidate, SpeedRow
from moefabric_studies.systems.hybrid_ep.stream_model import token_share


def domain_picture(cases: Mapping[str, Sequence[Candidate]]) -> str:
    """Draw the time of each case over p: a line for the formula, points for measured runs."""
    panels = []
    for name, rows in cases.items():
        high = max(1e3 * max(row.formula_s, *row.run.result.seconds) for row in rows)
        workers = rows[0].run.layer.levels[0]
        shares = [(token_share(workers, row.domains[0]), row) for row in rows]
        formula = [(share, 1e3 * row.formula_s, "") for share, row in shares]
        measured = [
            (share, 1e3 * seconds, f"{name}, domains of {row.domains[0]}: {1e3 * seconds:.2f} ms")
            for share, row in shares
            for seconds in row.run.result.seconds
        ]
        x = Axis(-0.05, 1.05, {0.0: "0", 0.5: "0.5", 1.0: "1"}, name)
        curves = curve(4, formula, marks=False), curve(1, measured, joined=False)
        panels.append(plot("", x, Axis.numbers(0.0, 1.06 * high), curves))
    legend = [("t1", "measured"), ("t4", "formula")]
    title = "Forward pass over p, the share of chunks sent as tokens, ms"
    return document_picture(title, panels, columns=len(panels), legend=legend)


def speed_picture(clusters: Mapping[str, Sequence[SpeedRow]]) -> str:
    """Draw the speed-up of each cluster over the tokens, measured and published."""
    gains = {
        name: [row.plain.seconds / row.hybrid.seconds for row in rows]
        for name, rows in clusters.items()
    }
    highest = max(
        max(row.published, gain)
        for name, rows in clusters.items()
        for row, gain in zip(rows, gains[name], strict=True)
    )
    y, panels = Axis.numbers(0.0, 1.06 * highest), []
    for name, rows in clusters.items():
        published = [
            (n, row.published, f"published {row.published:g}x") for n, row in enumerate(rows)
        ]
        measured = [
            (n, gain, f"cluster {name}, {row.tokens:g} MB: {gain:.2f}x")
            for n, (row, gain) in enumerate(zip(rows, gains[name], strict=True))
        ]
        text = f"{rows[0].hybrid.layer.levels[0]} data centres: tokens of a worker, MB"
        texts = {float(n): f"{row.tokens:g}" for n, row in enumerate(rows)}
        x = Axis(-0.5, len(rows) - 0.5, texts, text)
        panels.append(plot("", x, y, (curve(4, published), curve(1, measured))))
    legend = [("t1", "measured"), ("t4", "published")]
    title = "Speed-up of an iteration over plain expert parallelism"
    return document_picture(title, panels, columns=len(panels), legend=legend)
