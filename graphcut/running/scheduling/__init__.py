"""Which part runs when, and on which worker: one scheduler for all executors."""
