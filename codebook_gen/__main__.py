"""Entry point of `python -m codebook_gen`."""

from codebook_gen.cli import main

if __name__ == "__main__":
    main(prog_name="python -m codebook_gen")
