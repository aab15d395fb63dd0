"""What SGLang's source says, read without importing it."""
