"""The profiles that ship."""
