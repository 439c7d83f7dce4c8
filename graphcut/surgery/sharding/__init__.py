"""Shard a model: divide its layers among ranks."""
