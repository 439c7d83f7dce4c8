"""Whole ways in one call: from a model to verified parts (`Automation`), or to parts that run (`ModelSplitter`)."""
