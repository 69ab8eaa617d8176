"""The works, one file each."""
