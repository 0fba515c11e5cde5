"""Reading files that may be untrusted, and writing files for users."""
