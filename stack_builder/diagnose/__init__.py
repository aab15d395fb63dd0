"""Facts, rules, reports."""
