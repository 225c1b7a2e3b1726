"""Backend that writes captured graphs as plain C: scalar code without branches, in a loop over the batch, with libm."""
