"""What the paper published, computed again: its tables, its figures, its theorem."""
