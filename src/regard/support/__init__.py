"""Helpers that every package may use: argument checks, file writes, checksums, tables and numbers as text."""
