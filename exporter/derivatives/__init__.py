"""Derivatives that a file carries as methods: which were asked for, what eager mode says, how they are put together."""
