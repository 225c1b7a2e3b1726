"""Ways to run an archive: each takes calls and returns outputs."""
