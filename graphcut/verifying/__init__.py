"""Does a cascade do what its model does? `structural` proves it from the graphs, `numerical` by running both."""
