"""Graphs of saved TorchScript files: reading, canonical text, comparing, drawing."""
