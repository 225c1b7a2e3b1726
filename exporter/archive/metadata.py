"""What people say of a model, beside what it computes: description, authors, license, references."""

from __future__ import annotations

import dataclasses
import textwrap
from dataclasses import dataclass
from typing import Literal, get_args

from exporter.archive.contract_text import StrictlyRead, check_label
from exporter.archive.format_limits import MAX_TEXT
from exporter.common.errors import UsageError
from exporter.common.plain_text import find_unsafe
from exporter.common.units import spell_in_ascii

# What is said of variables and parameters; the names of the fields are those for people too.
TextField = Literal["unit", "quantity", "description"]
TEXT_FIELDS: tuple[TextField, ...] = get_args(TextField)


@dataclass(frozen=True)
class Metadata(StrictlyRead):
    """What the author of a model says of it.

    Attributes:
        description: What the model is, in any number of lines.
        authors: Names, with addresses where they are wanted: ``Jane Doe <jane@example.org>``.
        license: The license of the model, best as an expression of SPDX (https://spdx.org/licenses): ``CC-BY-4.0``.
        references: Where the model is published: ``doi:10.1016/0749-6419(89)90015-6``.

    Raises:
        UsageError: A text is too long, or does not show as it is.

    Example:
        ```python
        Metadata("Creep of a Maxwell element.", authors=("Jane Doe",), license="CC-BY-4.0")
        ```
    """

    description: str = ""
    authors: tuple[str, ...] = ()
    license: str = ""
    references: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_description(self.description)
        for text in self.authors:
            check_label(text, "an author", is_needed=True)
        check_label(self.license, "the license")
        for text in self.references:
            check_label(text, "a reference", is_needed=True)

    def fill_in(self, other: Metadata) -> Metadata:
        """Return what this says, and of what it does not say what the other one does."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return dataclasses.replace(other, **{name: value for name, value in own.items() if value})

    def format_lines(self, width: int = 110) -> list[str]:
        """Return all of it as lines for people; none where nothing is said."""
        license_line = [f"License: {self.license}"] if self.license else []
        authors, references = (
            [f"{label}: {text}" for text in texts]
            for label, texts in (("Author", self.authors), ("Reference", self.references))
        )
        rows = [*self.description.splitlines(), *authors, *license_line, *references]
        return [line for row in rows for line in textwrap.wrap(row, width)]


def check_description(text: str) -> None:
    """Raise ``UsageError`` for a description that is too long, or does not show as it is."""
    unsafe = find_unsafe(text, is_name=False)
    if len(text) > MAX_TEXT or unsafe:
        got = f"the character {unsafe}" if unsafe else f"{len(text)} characters"
        expected = f"at most {MAX_TEXT} characters, new lines among them, and no other control characters"
        raise UsageError("the description of the model is not a text", got=got, expected=expected, mend="correct it")


class VariableTexts:
    """What a variable and a parameter have in common: the texts that are said of them."""

    unit: str
    quantity: str
    description: str

    @property
    def note(self) -> str:
        """Return what is said of it for people, but for its unit: ``stress at the end of the step (Cauchy stress)``."""
        if self.description and self.quantity:
            return f"{self.description} ({self.quantity})"
        return self.description or self.quantity

    @property
    def has_texts(self) -> bool:
        """Return whether anything is said of it for people."""
        return bool(self.unit or self.note)


def format_texts(spec: VariableTexts) -> str:
    """Return unit and note behind a name in a comment: ``, MPa: stress in Mandel notation``; empty without them."""
    return (f", {spell_in_ascii(spec.unit)}" if spec.unit else "") + (f": {spec.note}" if spec.note else "")
