"""Checks of the gate, one a file."""
