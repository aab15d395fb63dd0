"""The cache as a whole: what lies in it and who needs it, whether it is what its names say, and what may go."""
