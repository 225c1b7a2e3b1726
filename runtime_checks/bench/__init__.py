"""How fast files are: beside each other, beside eager mode, beside the machine's limits, in one run."""
