"""Scoring that can be stopped anywhere and run again: committed parts, a manifest, a lease, and a journal for what is rewritten."""
