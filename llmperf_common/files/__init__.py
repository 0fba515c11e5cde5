"""Reading and writing files that come from others or go to users."""
