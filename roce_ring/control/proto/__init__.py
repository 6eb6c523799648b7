"""Generated from the .proto files beside it by generate.py; do not edit."""
