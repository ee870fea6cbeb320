"""Builds the turbokv fork of llama.cpp, compares KV-cache types on it, and says which to use."""
