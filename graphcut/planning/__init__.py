"""Which node goes into which part: goals, and one file a way to cut; `plans` puts it together."""
