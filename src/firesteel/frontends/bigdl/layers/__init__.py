"""The layers, by what they do."""
