"""Copilot: what a layer's experts will be asked for, from what the layer before was asked for (MixNet's paper, appendix B.1)."""
