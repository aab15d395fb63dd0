"""From a stack file to a lock."""
