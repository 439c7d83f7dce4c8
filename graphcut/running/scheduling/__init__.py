"""Which part runs when, and on which worker: one dispatcher for all crews."""
