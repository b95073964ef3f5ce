"""What every package may use: checks of arguments, atomic writes, checksums, tables, text."""
