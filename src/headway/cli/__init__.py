"""The command line: one module per verb, no logic of its own."""
