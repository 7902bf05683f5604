"""The models that ship, as presets."""
