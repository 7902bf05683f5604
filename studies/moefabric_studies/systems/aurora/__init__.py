"""The study of Aurora's claims."""
