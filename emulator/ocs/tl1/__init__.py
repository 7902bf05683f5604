"""TL1 front end (GR-831-CORE) with the commands of Polatis switches."""
