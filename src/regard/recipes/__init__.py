"""Named recipes."""
