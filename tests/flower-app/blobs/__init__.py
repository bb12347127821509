"""A small app for tests with real processes."""
