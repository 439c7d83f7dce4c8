"""Export a cascade in the formats of other tools, one module for each."""
