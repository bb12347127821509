"""The round loop and whoever watches it."""
