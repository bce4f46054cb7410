"""What is said of all runs: the answer, the topics, privacy, machines and problems."""
