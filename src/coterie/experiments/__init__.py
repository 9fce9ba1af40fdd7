"""Experiments: their configuration, running them, and what they leave behind.

Nothing is imported here, so that `coterie.experiments.schema` can be used before the slow import of PyTorch.
"""
