"""Web dashboard of running fabrics and of saved results: one page, kept current by the server."""
