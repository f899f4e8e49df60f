"""Published laws: loss, capacity, batch and rate, repetition, context."""
