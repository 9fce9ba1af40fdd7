"""Data sets by name: read from files in their official formats, or made."""
