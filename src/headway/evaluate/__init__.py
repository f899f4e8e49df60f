"""What is asked of a model between updates: held-out loss and greedy continuations (torch)."""
