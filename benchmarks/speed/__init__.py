"""Measurements of speed and memory, as ratios to what the same machine does in the same run."""
