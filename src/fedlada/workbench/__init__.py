"""Experiments, campaigns of many runs, reports and the command line."""
