"""From a model to its parts, and back."""
