"""NEML2 input files as sources. The only package that imports neml2."""
