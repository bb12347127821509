"""What the stacked engine is made of: a parameter layout, layers that hold many clients, and their kernels."""
