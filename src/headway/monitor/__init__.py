"""Pure functions of a run's records: the time ledger, alarms, and one look at a run."""
