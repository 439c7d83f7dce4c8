"""A whole model against its cascade, every way to run either: `rounds` is the contest, `contender` one that takes part.

Each contender runs in a process of its own, started afresh for each round, and all take turns: a busy machine, warm
caches and what an earlier one left in memory are the same for all.
"""
