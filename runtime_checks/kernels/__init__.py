"""C kernels on this machine: compiled, cached, called from NumPy."""
