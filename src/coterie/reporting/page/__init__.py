"""The page: what the dashboard serves and a report holds: plain data, words, and what shows them."""
