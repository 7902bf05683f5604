"""Models that train: their sizes, FLOPs, bytes of a token, and the form of tokens on the wire.

Start with `model`. `hugging_face` reads the configuration files of Hugging Face.
"""
