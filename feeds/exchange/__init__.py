"""The simulated exchange: real protocols on two bad lines, a re-request server and a snapshot service.

`exchange.Exchange` runs `programs` (the order flow, a day file, a capture) over `lines`; `command` is the
`twintape exchange` of the command line.
"""
