"""Report: tables for terminals and Markdown, HTML pages and charts, drawn from results alone.

Start with `page` and `table`. What the figures mean is decided in `moefabric.results`.
"""
