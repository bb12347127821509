"""A wide model, for measurements."""
