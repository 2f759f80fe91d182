"""A reward."""
