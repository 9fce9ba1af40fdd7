"""Experiments: setting them up, running them, many of them as cells, and taking part as a real peer."""
