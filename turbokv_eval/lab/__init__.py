"""The laboratory: quantisers of the field in NumPy, measured on the attention of real models."""
