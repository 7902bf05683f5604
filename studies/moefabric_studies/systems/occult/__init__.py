"""The study of Occult's claims."""
