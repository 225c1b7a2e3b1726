"""Limits of the format: more than this no reader takes, so that a small file cannot cost a host much.

``runtime_checks/native/src/limits.hpp`` has the same numbers; the reference page of the format says what they mean."""

from __future__ import annotations

MAX_RECORDS = 100_000
# What records may expand to beyond the bytes of the file: text is deflated, tensors are stored as they are.
MAX_INFLATED_BYTES = 2**28
MAX_CONTRACT_BYTES = 2**23
# Of each list and each object in the contract.
MAX_ITEMS = 10_000
# Characters of a name, and of any other text of the contract.
MAX_NAME, MAX_TEXT = 500, 100_000
# Characters of a unit: the quotient of two is no longer than a name.
MAX_UNIT = 200
# Numbers of a shape, and the largest of them.
MAX_RANK, MAX_SIZE = 64, 2**40
# Lists and objects in each other, in the contract and in the cases.
MAX_NESTING = 16
# Objects in each other in a module's pickle, and brackets and blocks in its source: torch's parsers are recursive.
MAX_SOURCE_NESTING = 500
# Of two numbers that differ by as much as they are large nothing is known.
MAX_RELATIVE_TOLERANCE = 1.0
