"""Commands of the command line, each in a module of its own; `cli` registers them."""
