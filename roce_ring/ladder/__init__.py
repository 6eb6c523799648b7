"""Which mode for which size: one ladder for every fabric (docs/ladder.md)."""
