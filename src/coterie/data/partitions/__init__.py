"""Ways to split a data set among peers."""
