"""The worker's side of a run: build the worker, train, measure, record."""
