"""Several machines: which of them a Ray cluster has, and the parts of fabrics that run on each."""
