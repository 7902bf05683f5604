"""Pages in Markdown, from templates of this package."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from moefabric.api.commands import write_output


def page_of(template: str, **values: Any) -> str:
    """Return the page that a template gives; equal values give equal pages.

    Args:
        template: Path of the template in this package, such as `systems/page.md.j2`.
        **values: What the template names.
    """
    environment = Environment(
        loader=PackageLoader("moefabric_studies", ""),
        autoescape=False,  # noqa: S701 - the page is Markdown
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(**values)


def write_page(page: Path, text: str, pictures: Mapping[str, str]) -> None:
    """Write a page, and its pictures beside it.

    Args:
        page: File of the page.
        text: The page.
        pictures: SVG files by their names.
    """
    for name, picture in pictures.items():
        write_output(page.with_name(name), picture)
    write_output(page, text)
