"""How messages travel and arrive: shared memory, router, transports, the subscriber API."""
