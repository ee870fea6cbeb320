"""Command line: `emit` writes or checks the generated files, `show` prints one codebook.

Exit codes: 0 ok, 1 a check failed, 2 usage or bad input.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import click

from codebook_gen import emit as emit_module
from codebook_gen.lloyd_max import MAX_BITS, Codebook, solve
from codebook_gen.marginal import MIN_DIM
from codebook_gen.verify import Report, verify

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def main() -> None:
    """Lloyd-Max codebooks for one coordinate of a random unit vector."""


@main.command()
@click.option("--header", type=_FILE, required=True, help="The C header to write.")
@click.option("--json", "json_path", type=_FILE, required=True, help="The JSON file to write.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a file differs from what would be written.")
def emit(header: Path, json_path: Path, check: bool) -> None:
    """Write the codebooks of docs/FORMAT.md as a C header and as JSON."""
    books = emit_module.format_codebooks()
    for book in books:
        _require_verified(book)
    for path, text in ((header, emit_module.header_text(books)), (json_path, emit_module.json_text(books))):
        if check:
            _check(path, text)
        else:
            _write(path, text)


@main.command()
@click.option("--dim", type=click.IntRange(min=MIN_DIM), required=True, help="Dimension d of the unit vector.")
@click.option("--bits", type=click.IntRange(1, MAX_BITS), required=True, help="Bits a value.")
def show(dim: int, bits: int) -> None:
    """Print one codebook: the positive half, in units of the standard deviation, and how well it is proven."""
    book = solve(bits, dim)
    report = _require_verified(book)
    click.echo(f"bits {bits}, dim {dim}, {2**bits} levels; positive half:")
    click.echo(f"{'centroid':>18} {'upper boundary':>18}")
    uppers = [f"{b:.12f}" for b in book.boundaries64()] + [f"{dim**0.5:.12f}"]
    for centroid, upper in zip(book.centroids64(), uppers, strict=True):
        click.echo(f"{centroid:18.12f} {upper:>18}")
    click.echo(f"normalised MSE {report.nmse:.9e}")
    click.echo(f"stationarity   {max(report.centroid_error, report.boundary_error):.1e} (by independent quadrature)")


def _require_verified(book: Codebook) -> Report:
    report = verify(book)
    if not report.ok:
        _fail(1, f"the codebook for bits={book.bits}, dim={book.dim} is not stationary: {report}")
    return report


def _check(path: Path, text: str) -> None:
    try:
        found = path.read_bytes()
    except OSError as error:
        _fail(1, f"{path}: {error.strerror}; run: {emit_module.COMMAND}")
    if found != text.encode():
        _fail(1, f"{path} differs from what {emit_module.COMMAND} writes; run it, do not edit the file")


def _write(path: Path, text: str) -> None:
    try:
        path.write_bytes(text.encode())
    except OSError as error:
        _fail(2, f"cannot write {path}: {error.strerror}; name a writable path in an existing folder")


def _fail(code: int, message: str) -> NoReturn:
    click.echo(f"codebook_gen: {message}", err=True)
    raise SystemExit(code)
