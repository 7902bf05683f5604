"""`moefabric explain`: what a key of a file means."""

from dataclasses import asdict
from pathlib import Path

import click

from moefabric.api.commands import print_result
from moefabric.api.key_reference import KINDS, KeyReference, first_sentence
from moefabric.ui.cli.command import cli_command, completed, json_option


@cli_command(
    "moefabric explain wiring.regions.ocs.settle", "moefabric explain --kind ocs-profile loss"
)
@click.argument("place", required=False, metavar="[KEY]", shell_complete=completed("keys"))
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    help="Kind of file. Default: the first of them that has the outermost key.",
)
@json_option
def explain(place: str | None, kind: str | None, as_json: Path | None) -> None:
    """Explain a KEY of a file: its type, units, default and meaning, and the keys inside it.

    KEY is a place such as wiring.regions.ocs.settle. Without KEY, list the outermost keys.
    """
    first = (place or "").partition(".")[0].partition("[")[0]
    chosen = kind or next(
        (one for one in KINDS if first in KeyReference.of_kind(one).names), KINDS[0]
    )
    reference = KeyReference.of_kind(chosen)
    if place is not None:
        key = reference.key(place)
        print_result({"kind": chosen, **asdict(key)}, key.lines(chosen), as_json=as_json)
        return
    texts = {name: reference.key(name).description for name in reference.names}
    width = max(map(len, texts))
    lines = [f"{name:<{width}}  {first_sentence(text)}" for name, text in texts.items()]
    print_result({"kind": chosen, "children": texts}, lines, as_json=as_json)
