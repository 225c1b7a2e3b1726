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
# Objects in each other in a module's pickle, and brackets and blocks in its code: torch's parsers are recursive.
MAX_CODE_NESTING = 500
# Values of a pickle beyond those that it has, if none were shared.
MAX_SHARED_VALUES = 2**22
# Parts of a constant: torch's compiler takes time with the square of them wherever one is used.
MAX_CONSTANT_PARTS = 200
# Parts of a type in that code, tuples and lists in each other, and parts of the types of all values together.
MAX_TYPE_PARTS, MAX_TYPE_DEPTH, MAX_TYPES = 2**16, 100, 2**22
# Attributes, elements and calls after each other, which torch's compiler walks through by recursion.
MAX_CHAIN = 100
# Classes and functions that name each other, which it walks through in the same way.
MAX_NAMED_DEPTH = 100
# How long a function is with all that it calls: so many times the code, and so many characters. torch's freezing
# takes time with the square of it.
MAX_REPEATS, MAX_REPEATED_TEXT = 8, 2**20
# Of two numbers that differ by as much as they are large nothing is known.
MAX_RELATIVE_TOLERANCE = 1.0
