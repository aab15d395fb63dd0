"""Requested against active: what SGLang's own tests of the GPU make of each feature."""
