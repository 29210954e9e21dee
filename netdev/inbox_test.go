package netdev

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// An inbox is a queue of frames, whatever pieces they are pushed and popped in.
func TestInbox(t *testing.T) {
	var b inbox
	if ok, _ := b.push([][]byte{{1}}, 1); ok {
		t.Error("a closed inbox takes a frame")
	}
	b.open(true)
	r := rand.New(rand.NewPCG(5, 6))
	pieces := func(f []byte) (list [][]byte) {
		for len(f) > 0 {
			n := 1 + r.IntN(len(f))
			list, f = append(list, f[:n:n]), f[n:]
		}
		return list
	}
	var model [][]byte
	pending, full := 0, 0
	for range 5000 {
		if r.IntN(5) < 3 {
			f := make([]byte, 1+r.IntN(20000))
			for i := range f {
				f[i] = byte(r.Uint32())
			}
			ok, wake := b.push(append(pieces(f), []byte("behind the frame")), len(f))
			if want := len(f)+4 <= inboxBytes-pending; ok != want || ok && wake != (len(model) == 0) {
				t.Fatalf("%d bytes behind %d: %t, wake %t", len(f), pending, ok, wake)
			}
			if !ok {
				full++
				continue
			}
			model, pending = append(model, f), pending+len(f)+4
			continue
		}
		out := bytes.Repeat([]byte{0xee}, 20010)
		n := b.pop(pieces(out))
		if len(model) == 0 {
			if n != 0 || b.ready.Load() {
				t.Fatalf("%d bytes of nothing", n)
			}
			continue
		}
		if !bytes.Equal(out[:n], model[0]) || out[n] != 0xee {
			t.Fatalf("another frame, %d bytes", n)
		}
		pending -= n + 4
		if model = model[1:]; b.ready.Load() != (len(model) > 0) {
			t.Fatalf("ready %t with %d", b.ready.Load(), len(model))
		}
	}
	if full == 0 {
		t.Error("it was never full")
	}
	b.open(false)
	if b.ready.Load() || b.pop([][]byte{make([]byte, 9)}) != 0 {
		t.Error("a closed inbox has a frame")
	}
}
