"""From an exported model to verified parts: converted by other libraries, measured, planned, cut, and recorded."""
