"""One owner, one trainer at a time: launch, watch, restart, take over."""
