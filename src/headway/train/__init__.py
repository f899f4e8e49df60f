"""Training: set-up, feed, step, loop."""
