"""Measuring: a whole model against its cascade (`comparison`), and the cost of each module (`cost_measurement`).

Each way to run a model is measured in a process of its own, started anew for each round, and the ways take turns: a
busy machine, warm caches and memory left by an earlier run affect all of them alike.
"""
