"""RESTCONF front end (RFC 8040) with the YANG modules of Polatis switches."""
