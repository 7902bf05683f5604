"""The page of a study as Markdown, with its pictures beside it."""

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from moefabric.config.atomic_file import write_whole
from moefabric.systems.study import StudyResult
from moefabric.systems.text import COLUMNS, claim_cells, counts_text


def page_text(result: StudyResult, file: Path) -> str:
    """Return the page of a study.

    Args:
        result: The study's result.
        file: The study's file, as the page names it.
    """
    environment = Environment(
        loader=PackageLoader("moefabric.systems", ""),
        autoescape=False,  # noqa: S701 - the page is Markdown
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text = environment.get_template("page.md.j2").render(
        spec=result.spec,
        file=file,
        seconds=result.seconds,
        outcome=result.outcome,
        claims=result.claims,
        counts=counts_text(result.claims),
        columns=COLUMNS,
        rows=[[_cell(cell) for cell in claim_cells(claim)] for claim in result.claims],
        runs=result.run_verdicts,
    )
    return text.rstrip() + "\n"


def write_page(result: StudyResult, file: Path, page: Path) -> None:
    """Write the page of a study, and its pictures into the page's folder."""
    write_whole(page, page_text(result, file))
    for name, picture in result.outcome.pictures.items():
        write_whole(page.with_name(f"{name}.svg"), picture)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
