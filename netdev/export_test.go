package netdev

// Pointers counts what points into the driver's memory, apart from a frame that waits
// for buffers and from rings.
func (d *Device) Pointers() (n int) {
	for _, w := range d.pairs {
		_ = w.post(func() {
			lists := [][][]byte{w.plain.bufs[:], w.rxs.iov[:cap(w.rxs.iov)], w.txs.iov[:cap(w.txs.iov)]}
			for _, f := range w.txs.frames {
				lists = append(lists, f)
			}
			for i := range w.txs.batch.Chains {
				lists = append(lists, w.txs.batch.Readable(i))
			}
			for i := range w.rxs.batch.Chains {
				lists = append(lists, w.rxs.batch.Writable(i))
			}
			for _, l := range lists {
				for _, b := range l {
					if b != nil {
						n++
					}
				}
			}
		})
	}
	return n
}

// Move moves a queue pair to a thread of the device's pool, and reports whether it is
// there now.
func (d *Device) Move(pair, thread int) bool {
	w := d.pairs[pair]
	from, to := w.on.Load(), d.cfg.Pool.runners[thread]
	if from != to {
		w.move(from, to)
	}
	return w.on.Load() == to
}
