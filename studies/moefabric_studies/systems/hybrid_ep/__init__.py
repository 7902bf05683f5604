"""HybridEP: experts move inside domains, tokens between them (arXiv 2510.19470)."""
