"""Text in, text out: tokenizers, chat templates, and text that is made of tokens as they come."""
