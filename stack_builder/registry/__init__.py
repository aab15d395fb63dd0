"""Images to and from registries, by the OCI distribution specification."""
