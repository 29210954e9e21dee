//go:build amd64 || arm64

package prefetch

// Read asks for the beginnings of bufs, the first 76 bytes at least (a virtio-net
// header and a short frame), to be read.
//
//go:noescape
func Read(bufs [][]byte)

// Write asks for them to be written to: no other processor has them then.
//
//go:noescape
func Write(bufs [][]byte)
