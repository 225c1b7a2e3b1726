"""Programs that call a kernel by an interface of their own: what is written around the kernel, from its contract."""
