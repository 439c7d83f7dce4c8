"""Where a model can be cut: key nodes, segments, liveness, cut points, repeated blocks."""
