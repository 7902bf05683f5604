"""Pure models of time: routes and the fluid bound, and a simulation of all flows of iterations."""
