"""History at scale: journals of all adapters merged into one verified tape."""
