"""How anything outside a rank talks to it: status, counters, the idle policy, abort, health."""

import os

# gRPC cannot follow a fork while its threads run, and ours always do; asked to try, it prints a line at every fork of
# the user's program. Read when grpc is first imported, so it is set before any module of this package does that.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
