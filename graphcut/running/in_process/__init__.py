"""A cascade in this process: parts stay loaded while they fit, and memory keeps to its cap."""
