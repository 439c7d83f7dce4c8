"""Inputs for a model: read from files, or generated so that the model runs."""
