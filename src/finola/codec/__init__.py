"""The `.finola` file: integers and bytes that every machine codes and decodes alike."""
