"""What a run is asked to do: options, their checks, their defaults."""
