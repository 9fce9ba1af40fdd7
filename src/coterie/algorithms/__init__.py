"""The algorithms, one file each; `parts` holds what several of them share."""
