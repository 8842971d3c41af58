"""An exchange's stream in, our stream out, active and backup in step."""
