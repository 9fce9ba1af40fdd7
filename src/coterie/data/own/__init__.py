"""Data that users bring: arrays and Datasets in memory, or a file that one peer alone has."""
