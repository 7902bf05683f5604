"""Other systems of the field on this testbed: their published claims, measured and judged."""
