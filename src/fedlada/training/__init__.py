"""The round loop and its observers."""
