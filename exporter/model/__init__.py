"""Models before capture: one form for every source, composition, functions."""
