"""Who runs parts: an executor is a set of workers, one file a kind. `executor` is what all kinds have in common."""
