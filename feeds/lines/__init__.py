"""Line A, line B and the re-request server as one ordered stream of frames.

`receiver.LineReceiver` is what others use. Inside: `sockets` and `receive_kernels` take datagrams,
`arbitrate_kernels` (with `hold_kernels`, `doubt_kernels`, `loss_kernels`) puts messages in order,
`handler` and `gaps` judge what only time can decide, `events` says what happened,
`tables` draws the memory they share.
"""
