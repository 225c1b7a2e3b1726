"""The suites: each lists its cases, and makes one by its name."""
