"""What a run is: the recipe as written, the Spec as resolved, schedules, parameter roles, digests, lineage."""
