"""Eager mode, the reference for every number: evaluation, warmup, reference cases and derivatives."""
