"""The algorithms, one file each."""

from coterie.algorithms.catalogue import algorithms

__all__ = ["algorithms"]
