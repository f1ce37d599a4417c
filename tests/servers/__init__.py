"""Small servers that tests run against, in this process and on this machine only."""
