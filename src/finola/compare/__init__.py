"""Comparison of methods on the same photos: measurements, tables by latents and by rate, rate–distortion curves."""
