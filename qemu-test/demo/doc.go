// Command demo boots a Linux guest under QEMU on vhostnet, with a TAP in a
// network namespace of its own on the host side, and shows that the guest's
// `ethtool -C` reaches the device: what the guest sees, and how many notifications
// the device sends before and after.
//
// It needs root for the namespace and leaves nothing behind but the cache.
package main
