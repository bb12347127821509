"""Reproduction of the paper's tables, figures and theorem."""
