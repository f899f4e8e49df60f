"""Experiments on small models that decide something about a large one: sweeps, optima, hyperparameter transfer."""
