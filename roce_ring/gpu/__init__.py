"""Collectives on an NVIDIA GPU. Nothing here is imported before a communicator for "cuda" is made."""
