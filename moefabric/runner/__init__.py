"""Composition root: brings fabrics up and runs experiments on them."""
