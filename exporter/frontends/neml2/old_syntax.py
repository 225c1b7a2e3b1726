"""Input files of NEML2 2: what in them NEML2 3 does not know, and what it has in its place.

Of NEML2 2 are MOOSE's input files of NEML2 models (modules/solid_mechanics/test/tests/neml2/models)."""

from __future__ import annotations

from pathlib import Path

from exporter.frontends.neml2.overrides import iterate_fields

# By option, and by the beginning of a name of a variable.
OPTIONS = {
    "implicit_model": "equation_system = NAME, with NAME in [EquationSystems]: type = NonlinearSystem, model, unknowns",
    "from_var": "from; and weights for the coefficients beside it",
    "to_var": "to",
}
PREFIXES = {"old_state/": "NAME~1 for the value of state/NAME before", "old_forces/": "NAME~1 for that of forces/NAME"}


def find_old_syntax(path: Path) -> list[str]:
    """Return what to change in an input file of NEML2 2, each with its line; nothing for other files."""
    import nmhit

    changes: dict[str, str] = {}
    for _, field in iterate_fields(nmhit.parse_file(path, [], [])):
        if field.path() in OPTIONS:
            changes.setdefault(field.path(), f"line {field.line()}: for {field.path()} {OPTIONS[field.path()]}")
        for prefix, name in PREFIXES.items():
            if any(word.startswith(prefix) for word in field.raw_val().strip("'\"").split()):
                changes.setdefault(prefix, f"line {field.line()}: for {prefix}NAME {name}")
    return list(changes.values())
