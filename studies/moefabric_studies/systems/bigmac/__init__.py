"""The study of BigMac's claims."""
