"""One planner for each goal."""
