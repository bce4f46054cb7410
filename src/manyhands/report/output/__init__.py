"""What is written: the page, the PDF, JSON, tables, and the server of a page that grows."""
