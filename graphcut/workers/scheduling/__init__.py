"""Which part runs when and on which worker. One scheduler for all executors."""
