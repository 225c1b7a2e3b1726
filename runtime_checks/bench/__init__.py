"""Speed of files: against each other, eager mode and the machine's limits, in one run."""
