"""The parts of the stacked engine: a parameter layout, layers that hold many clients, and their kernels."""
