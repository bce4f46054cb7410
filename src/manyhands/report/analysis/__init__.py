"""What is calculated from the records: groups, medians, speed-ups, laws and tests."""
