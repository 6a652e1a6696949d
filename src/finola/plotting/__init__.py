"""Figures, animations and drawings. No lower layer imports this package."""
