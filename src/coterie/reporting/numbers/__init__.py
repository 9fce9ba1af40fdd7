"""The numbers of every picture, each computed by one function: page, report, PNG and CSV show the same."""
