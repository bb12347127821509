"""The paper's results, computed again: its tables, its figures, its theorem."""
