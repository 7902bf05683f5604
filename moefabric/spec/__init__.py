"""What the user writes: fabrics and experiments in YAML, checked completely before anything is made."""
