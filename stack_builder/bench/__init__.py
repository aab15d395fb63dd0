"""Load on running servers, arms compared in pairs, and the policy and history made from the results."""
