"""`python -m graphcut`: the command where its script is not on the path."""

from __future__ import annotations

from .cli import main

main()
