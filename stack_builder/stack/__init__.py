"""Stack files, locks and receipts: plain frozen data."""
