"""TL1, the command language of telephone exchanges, as an optical switch of the Polatis kind speaks it."""
