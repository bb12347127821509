"""Charts as plain data, and plots of them; matplotlib is imported when one is drawn."""
