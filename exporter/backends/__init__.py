"""Backends: the same contract in other formats, written from the graphs of an archive."""
