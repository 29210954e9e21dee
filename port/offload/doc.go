// Package offload does in software what a driver has not agreed to do itself: it
// completes checksums and cuts segments (virtio 1.4, "Network Device", "Processing of
// Incoming Packets").
package offload
