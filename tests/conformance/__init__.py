"""What every exchange format must do, whichever exchange it is."""
