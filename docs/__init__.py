"""The documentation, and the script that turns it into pages."""
