"""Bring the files of parts to a machine, in blocks that are checked."""
