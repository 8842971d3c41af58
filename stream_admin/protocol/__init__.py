"""The words that administration server, adapters and subscribers share.

    messages.py   endpoints, heartbeats, grants, subscriptions, reports, audit entries
    filters.py    which instruments somebody may read, from which position on
    patterns.py   the small language of `AAPL` and `MS*`
    tickets.py    verifying tickets (needs `cryptography`; the others need nothing)
    names.py      which names and numbers are allowed
    forms.py      how all of that is checked, and written as JSON

This package is the only part of stream_admin that other folders may import.
"""
