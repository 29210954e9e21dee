// Package linkwatch tells when a network interface changes: goes up, down or away.
package linkwatch
