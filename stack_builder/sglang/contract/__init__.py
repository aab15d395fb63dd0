"""What EAGLE-3 asks of a target and of a draft model, and which models of a release give it."""
