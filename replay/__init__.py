"""Recording what the feed carried, and playing it back."""
