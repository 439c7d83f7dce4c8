"""A cascade played through on a virtual clock: the scheduler is the one that runs, its workers are only reckoned.

`scenario` says what is played, `network`, `machines` and `clock` are what it is played on, `playing` plays it, and
`records` holds what came of it.
"""
