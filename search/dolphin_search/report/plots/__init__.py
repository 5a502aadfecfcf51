"""The report's figures, each a function that returns an SVG."""
