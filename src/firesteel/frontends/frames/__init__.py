"""The frames door: small programs over columns. Its names are at ``firesteel.frames``."""
