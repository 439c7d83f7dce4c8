"""A cascade as a decoder: tokens in, tokens out; the states of each part stay with it."""
