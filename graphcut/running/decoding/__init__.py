"""A cascade as a decoder: tokens in, tokens out, and the states of each part stay with it."""
