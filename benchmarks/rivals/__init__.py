"""The same work as others do it: one script for each rival, which runs in an environment of its own."""
