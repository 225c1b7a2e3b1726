"""Sources of models: NEML2 input files, and torch modules in Python."""
