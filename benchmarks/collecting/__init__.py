"""What collecting costs, and how good the collected times are."""
