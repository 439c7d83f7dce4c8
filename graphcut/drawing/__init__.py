"""Pictures of products: scenes and their builders, one renderer for each format, and the documents of `--json`."""
