"""Where a model comes from: a NEML2 input file, or torch modules in Python."""
