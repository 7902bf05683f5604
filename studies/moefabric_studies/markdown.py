"""Pages in Markdown, from templates of this package."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


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
