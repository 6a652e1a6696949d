"""One Lightning module per task."""
