"""Export a cascade in the formats of other tools, one module for each.

Each has a function `export_NAME(cascade, folder, *, force=False)`. It takes a cascade or its path, writes a new folder
as a whole or not at all, and returns its files, sorted. With `force` it replaces a folder that holds such an export and
nothing else. Errors: UsageError for a folder that it may not replace, or a cascade that the format can't hold;
CascadeError for a file of the cascade that is missing; GraphcutError where writing fails.
"""
