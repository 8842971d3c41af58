"""The inspector: what is in a node's shared memory, who uses it and how, seen from outside (`twintape shm`).

look.py        all there is, or one item by name
report.py      what may be said of an item; a row for each
files.py       what is known of any file, and who sits there; nothing is mapped, taken or written
logs.py        a log: its writer, its readers, how far behind each is
rings.py       a ring: its ends, and what was committed last
slabs.py       a slab: how full, who takes part, what the dead still hold
bells.py       a bell: how often it was rung
removal.py     removing what nobody uses
text.py        all of that in words; table.py: in columns that fit the terminal
command.py     the command's options
"""
