"""Speed and soak benchmarks. `make bench`, or python -m benchmarks.run --help."""
