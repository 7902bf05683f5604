"""moefabric: a testbed for networks that change shape while a Mixture-of-Experts model trains."""
