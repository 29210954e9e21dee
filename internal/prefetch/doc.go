// Package prefetch asks the processor for memory that will be used soon.
//
// Buffers of a virtqueue were touched last by the driver, on another processor: the
// first access to each waits for that processor's cache. A program waits for loads
// several at a time, but for stores, which take effect in order, nearly one by one;
// asked for beforehand, the buffers of a burst come all at the same time. Received
// frames of 64 bytes are 1.4 times as fast that way, on a machine where a line takes
// 160 ns from one processor to the other (bench, row built-in/source/64/virtio-user).
//
// The language has no such operation, hence a few instructions of assembly for each
// architecture; where there are none, nothing is asked for. Asking never faults, and
// changes nothing but when memory is where.
package prefetch
