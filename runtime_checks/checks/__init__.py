"""Checks of an archive: each takes what a runner returned and gives a verdict."""
