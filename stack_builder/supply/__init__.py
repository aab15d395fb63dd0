"""What an image is made of and how it came about, in the forms that others read: CycloneDX, SLSA, signatures."""
