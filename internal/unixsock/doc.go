// Package unixsock makes Unix sockets: listening ones that replace what a dead
// process left and nothing else, and connected pairs.
package unixsock
