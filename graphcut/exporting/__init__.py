"""A cascade in the files of other tools: one file here for each format."""
