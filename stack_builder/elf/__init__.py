"""The static linker: what ld.so would do, without loading anything."""
