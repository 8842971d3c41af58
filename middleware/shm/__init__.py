"""Shared memory: how messages travel inside a host, and files that outlive the processes around them.

runtime.py     the node's directory: names, permissions, what a crash left behind
mapping.py     a file's header: magic, version, sizes, checked before anything else is believed
seats.py       who writes, reads, produces, consumes; the kernel frees the seats of the dead
atomics.py     the few machine operations that all of it is made of
waiting.py     spin, yield, back off, block
bell.py        what many ring, so that one process can wait for all of them
log.py         the stream log: one writer, any number of readers
ring.py        a queue between two processes, either of which may be replaced
slab.py        message bodies that several processes share
inspection/    what there is and who uses it, from outside, for people and programs
"""
