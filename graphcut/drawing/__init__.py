"""What there is to see, drawn: one file a pen."""
