"""The study of programmable links and of TCP incast over them."""
