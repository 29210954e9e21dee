// Package coalesce decides when a device notifies its driver.
//
// A [Moderator] holds the notification limits of one virtqueue and is told what
// the device has made used. Its verdict says whether to notify now, not before
// a certain time, or not at all. [Settings] keeps what the driver asked for
// through the control queue, and [Effective] joins it with the host's policy.
//
// An [Engine] chooses the host's limits by itself from what a worker observes; an
// [EngineSpec] is its notation. The engines are "off" and "fixed", which do not
// learn, net_dim and rdma_dim after the Linux kernel's published algorithms, and
// one of our own, "adaptive".
//
// The package is pure: it has no clock, no goroutine and no file descriptor.
// Time is a number that the caller passes in, nanoseconds on any clock that does
// not go backwards. Nothing in it allocates after construction.
//
// The rules are those of virtio 1.4, "Network Device / Device Operation /
// Control Virtqueue / Notifications Coalescing". Whether the driver wants
// notifications at all at that moment (EVENT_IDX, NO_INTERRUPT) is not judged
// here: the caller asks the virtqueue when a verdict says that it is time.
package coalesce
