"""Many runs: comparisons, forecasts, audits, benchmarks."""
