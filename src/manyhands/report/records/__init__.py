"""Reading and checking run records, from folders and from packed archives."""
