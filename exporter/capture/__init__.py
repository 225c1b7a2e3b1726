"""From a warmed-up module to a TorchScript module that calls nothing of the source library."""
