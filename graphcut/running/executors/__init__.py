"""Who runs parts: a crew is a set of workers, one file a kind. `crew` is what all kinds have in common."""
