"""The soundness gate: no file is written from a capture that lost meaning. One file per check."""
