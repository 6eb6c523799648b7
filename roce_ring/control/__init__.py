"""How anything outside a rank talks to it: status, counters, the idle policy, abort, health."""
