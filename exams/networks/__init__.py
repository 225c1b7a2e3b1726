"""Networks of packages from pip with random weights, by family; packages are imported where a network is made."""
