"""A trained run on disk: its folder, and how it is read back."""
