"""Executors: sets of workers that run parts. `protocol` is their interface; each kind of worker has its own module."""
