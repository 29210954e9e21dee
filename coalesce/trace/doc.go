// Package trace writes down what moderation engines observe and decide, and
// feeds it to other engines later.
//
// A trace is text with one JSON object a line, a [Record]. A [Writer] takes
// records from the workers of a device without ever holding them up, [Read] reads
// them back, and [Replay] tells what an engine would have decided from the same
// observations. The simulator takes a trace as a recording of arrivals, which is
// another question: there the guest reacts to what is decided, here it does not.
//
// The limits are those of virtio 1.4, "Network Device / Device Operation /
// Control Virtqueue / Notifications Coalescing". The package has no clock and
// opens no file: times are the observations', and bytes go to a writer.
package trace
