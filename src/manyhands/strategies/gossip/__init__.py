"""Gossip."""
