"""One module for each llama.cpp program: the command line it takes, and what it prints."""
