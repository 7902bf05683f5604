"""Codecs of tokens and experts of other papers: they run for real, and count and time themselves.

Start with `coded_payload`, the payload transform `error-bounded`.
"""
