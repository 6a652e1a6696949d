"""The `.finola` image codec. Its integers and bytes are identical on every machine."""
