"""Plans against what was published, and published schedules without a model."""
