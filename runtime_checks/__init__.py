"""The part of torchferry that sees only the file: load, compare, verify, report."""
