// Package interop tests vhostnet with front-ends that others have written. They are
// Debian's, unpacked into the cache folder; vhostnet is the built program, of which
// the tests see the status API.
package interop
