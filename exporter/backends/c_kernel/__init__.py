"""Captured graphs as plain C: scalars without branches, a loop over the elements of the batch, no library but libm."""
