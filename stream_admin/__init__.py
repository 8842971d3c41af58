"""Who may read what from where, and who is active: directory, operator API, console."""
