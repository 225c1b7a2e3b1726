"""The code that a TorchScript file holds: its graphs as plain values, read and run without ``torch.jit``."""
