"""Every peer on the same photos in one run: rows, tables by latents and by bits, curves, a contact sheet."""
