"""How numbers and sentences are worded, and the prose that explains each strategy."""
