"""The SVG renderer: dependency map, lane chart and cut profile as one file, and the first two for the HTML page.

Text is text, in the fonts of the reader. Dashes say the same as colours. The colours follow `prefers-color-scheme`.
"""
