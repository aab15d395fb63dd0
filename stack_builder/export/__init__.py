"""A stack as a compose file or as Kubernetes objects."""
