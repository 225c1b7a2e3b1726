"""Packages of torch.export's programs, compiled by AOTInductor or as they are."""
