"""Discrete-event simulation of a run: the scheduler of `running` with simulated devices and links, on a virtual clock.

A `scenario` describes what is simulated, `simulator` runs it, and `results` are its records.
"""
