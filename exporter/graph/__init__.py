"""Saved graphs as text."""
