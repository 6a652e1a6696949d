"""Interactive demo served by `finola app`: reconstruction, latent space and waves of an uploaded photo.

Photos are stored only in the memory of a visitor's session; uploaded files are deleted once they are read.
"""
