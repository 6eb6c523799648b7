"""The node agent: a root service that makes one node's part of a plan true, proves it, watches it, takes it back."""
