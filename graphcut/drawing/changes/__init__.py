"""What changed between two divisions of one model."""
