// Package provision brings what the guest tests need into a cache folder: two
// QEMUs, a Linux kernel, User-Mode Linux, and the programs of the initramfs.
//
// Everything comes from the Debian archive that the machine's own apt already
// uses, through a private apt state, so that nothing is installed and the
// machine's apt is not touched. Versions are resolved when the cache is filled;
// a filled cache is used as it is until it is deleted or refreshed.
package provision
