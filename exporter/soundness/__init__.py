"""The soundness gate: a capture that lost meaning never becomes a file. One file a check."""
