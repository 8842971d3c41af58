"""A seeded, consistent day of ITCH messages, compiled: `flow.OrderFlow` and `flow.write_day_file`."""
