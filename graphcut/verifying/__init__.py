"""Verify that a cascade computes what its model computes: a structural proof and a numerical check."""
