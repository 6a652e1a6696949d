"""Interactive demo served by `finola app`: reconstruction, latent space and waves of an uploaded photo.

Photos are stored in the memory of a session only; no uploaded file is written to disk.
"""
