"""Which layouts can be, which of them is fastest, and what each communicates."""
