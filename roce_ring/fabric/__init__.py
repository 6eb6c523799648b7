"""The PCI fabric of one host: who sits below which switch and which host bridge (docs/topo.md)."""
