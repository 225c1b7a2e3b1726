"""Runners of archives: each takes calls and returns outputs."""
