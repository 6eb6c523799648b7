"""One file per verb of `roce-ring`; each has register(app), and imports what is heavy only when its verb runs."""
