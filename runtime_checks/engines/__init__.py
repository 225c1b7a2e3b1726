"""Engines that run an archive in this process, and the choice between them."""
