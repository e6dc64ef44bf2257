"""Makes `python -m penstock` the same as `penstock`."""

from penstock.cli import main

main()
