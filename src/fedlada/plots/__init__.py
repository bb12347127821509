"""Charts as plain data, and pictures of them (matplotlib is imported when one is drawn)."""
