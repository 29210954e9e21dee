package driver

import "fmt"

// Pause disables and stops all rings, as a VMM does that pauses its machine. No
// goroutine may use a pair until Resume.
func (d *Driver) Pause() error {
	for _, q := range d.rings {
		if err := d.fe.SetVringEnable(q.index, false); err != nil {
			return fmt.Errorf("driver: pause virtqueue %d: %w", q.index, err)
		}
	}
	d.bases = d.bases[:0]
	for _, q := range d.rings {
		base, err := d.fe.GetVringBase(q.index)
		if err != nil {
			return fmt.Errorf("driver: pause virtqueue %d: %w", q.index, err)
		}
		d.bases = append(d.bases, base)
	}
	return nil
}

// Resume starts the rings where Pause stopped them, and enables them.
func (d *Driver) Resume() error {
	for i, q := range d.rings {
		if err := d.fe.SetVringBase(q.index, d.bases[i]); err != nil {
			return fmt.Errorf("driver: resume virtqueue %d: %w", q.index, err)
		}
		if err := d.fe.SetVringKick(q.index, q.kick); err != nil {
			return fmt.Errorf("driver: resume virtqueue %d: %w", q.index, err)
		}
	}
	for _, q := range d.rings {
		if err := d.fe.SetVringEnable(q.index, true); err != nil {
			return fmt.Errorf("driver: resume virtqueue %d: %w", q.index, err)
		}
	}
	return nil
}
