"""The ABI rules: would the loader find every library, version and symbol, and what would mend it?"""
