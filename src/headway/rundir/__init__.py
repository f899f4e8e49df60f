"""The run's contract on disk: layout, lease, segments, events, metrics."""
