"""DLCP: a transport that loses a bounded share of gradients (arXiv 2008.08445)."""
