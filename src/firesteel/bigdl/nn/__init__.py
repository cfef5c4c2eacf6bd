"""Layers, criterions and how weights begin."""
