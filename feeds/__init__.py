"""What a message is: our frame, the exchange formats, the line protocols, the simulated exchange.

This package imports nothing of ours, and everything else of ours may import it.
"""
