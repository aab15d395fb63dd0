"""From a lock to an OCI image, and back."""
