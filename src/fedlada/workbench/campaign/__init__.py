"""Campaigns of many runs: each is run once, stored by its configuration, and resumed where it stopped."""
