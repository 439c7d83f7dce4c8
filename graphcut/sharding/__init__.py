"""Divide layers among ranks: axes and their rules, rewriting, and what ranks cost."""
