"""Data: what users give, how it is stored, and which worker sees what when."""
