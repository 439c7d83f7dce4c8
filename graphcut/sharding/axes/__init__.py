"""Along which axes the work of a model can be divided: factors of nodes, classes of axes, shares."""
