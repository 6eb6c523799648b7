"""What inference engines and torch.distributed load. Nothing outside this folder knows an engine."""
