"""Containers as servers: their engine, their life with a fabric, and programs inside them."""
