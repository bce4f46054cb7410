"""What every process of a run does: build its worker, train, measure, record."""
