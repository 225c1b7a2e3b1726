"""Templates of files that are written: an environment of Jinja in which a missing name is an error."""

from __future__ import annotations

import jinja2

from exporter.common.c_text import escape_comment


def make_templates(package: str) -> jinja2.Environment:
    """Make the environment of a package's templates; ``comment`` makes a text fit a comment of C."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters["comment"] = escape_comment
    return templates
