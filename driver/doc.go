// Package driver is a virtio-net driver over the front-end half of vhost-user: a
// guest without a virtual machine. It has its own guest memory (a memfd), split or
// packed virtqueues with or without EVENT_IDX and indirect descriptors, any number of
// queue pairs and the control queue (virtio 1.4, "Network Device", "Split
// Virtqueues" and "Packed Virtqueues"; vhost-user, "Front-end").
//
// [New] negotiates over a connection and starts the rings; [Driver.Close] stops
// them with GET_VRING_BASE and frees everything. A [Pair] has a transmit and a
// receive half. [TX.Send] fills buffers and [TX.Flush] publishes them all at
// once; [RX.Receive] takes up to a budget of packets, and [RX.Wait] asks for
// notifications and sleeps on the call eventfd, as NAPI does. The datapath does
// not allocate.
//
// Each half of a pair is used by one goroutine at a time. The control queue and
// the counters may be used by any.
//
// The counters are exact: kicks that were sent and that the device did not want,
// and notifications as the sum of what the call eventfds held, which is the
// number of times the device has written to them.
package driver
