"""The schedule of a training iteration: what each stage does, what must be done before it, and how long all of it takes."""
