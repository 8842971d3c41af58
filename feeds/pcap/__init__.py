"""Captured files, pcap and pcapng, as datagrams: `reader.open_datagrams`; and `writer.PcapWriter`."""
