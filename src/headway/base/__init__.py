"""What every room stands on: units, digests, clocks, files, records, errors, failpoints. Standard library only."""
