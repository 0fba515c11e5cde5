"""What collecting costs and how good its times are."""
