"""Programs of the project itself: the set-up and its helpers. Nothing here is installed."""
