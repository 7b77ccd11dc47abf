"""The XLA client through jaxlib: which platform, which devices, and moving bytes. Imports nothing heavy itself."""
