"""RESTCONF (RFC 8040) as an optical switch of the Polatis kind speaks it: YANG modules optical-switch and polatis-switch over HTTP."""
