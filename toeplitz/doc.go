// Package toeplitz computes the hash by which a network device steers received
// frames and that it reports to the driver: which fields of a frame are hashed
// ([Parse]) and the Toeplitz function over them ([Hasher]).
//
// Sections of the specification: virtio 1.4, "Network Device / Hash calculation
// for incoming packets" and "Hash reporting for incoming packets".
package toeplitz
