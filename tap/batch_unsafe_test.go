package tap

import "unsafe"

func bytesAt(p *byte, n uint64) []byte { return unsafe.Slice(p, n) }
