package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/vhostnet/vhostnet/bench/peer"
)

// contender is one back-end of a row with its front-end.
type contender struct {
	name string
	back peer.BackEnd
	peer.FrontEnd
	// cores are the front-end's processor and the back-end's.
	cores [2]int
	// network is the back-end's own, nil if it has none. It is closed after both.
	network *peer.Network
	// host: what the front-end sends has to come to the network's socket.
	host bool
}

// Close ends both.
func (c *contender) Close() error {
	var errs []error
	if c.FrontEnd != nil {
		errs = append(errs, c.FrontEnd.Close())
	}
	if c.back != nil {
		errs = append(errs, c.back.Close())
	}
	return errors.Join(append(errs, c.network.Close())...)
}

// window measures once. others is the share of the time in which other programs had
// the front-end's processor or the back-end's, the larger of the two.
func (c *contender) window(ctx context.Context, warmUp, length time.Duration) (w peer.Window, others float64, err error) {
	before, err := c.look()
	if err != nil {
		return peer.Window{}, 0, err
	}
	if w, err = c.measure(ctx, warmUp, length); err != nil {
		return w, 0, err
	}
	after, err := c.look()
	if err != nil {
		return w, 0, err
	}
	// Packets of the warm-up are among those that have arrived.
	if got := float64(after.arrived - before.arrived); c.host && got < arrival*w.Packets {
		return w, 0, fmt.Errorf("the host has got %.0f of %.0f packets", got, w.Packets)
	}
	return w, c.othersBetween(before, after), nil
}

func (c *contender) measure(ctx context.Context, warmUp, length time.Duration) (w peer.Window, err error) {
	if err := c.back.Resume(ctx); err != nil {
		return peer.Window{}, err
	}
	defer func() { err = errors.Join(err, c.back.Pause(ctx)) }()
	return c.Measure(ctx, warmUp, length, c.back.PID())
}

// arrival is the least share of packets that have to arrive at the host.
const arrival = 0.95

// state is what can be seen of a contender from outside while it is idle.
type state struct {
	at time.Time
	// front and back are the processor time of the processes.
	front, back time.Duration
	// idle is how long each processor has been idle.
	idle map[int]time.Duration
	// arrived are packets at the host.
	arrived uint64
}

func (c *contender) look() (s state, err error) {
	s.at = time.Now()
	if s.front, err = peer.CPUTime(c.PID()); err != nil {
		return s, err
	}
	if s.back, err = peer.CPUTime(c.back.PID()); err != nil {
		return s, err
	}
	if s.idle, err = peer.Idle(); err != nil {
		return s, err
	}
	if c.host {
		s.arrived, err = c.network.Datagrams()
	}
	return s, err
}

// othersBetween returns the share of the time in which the contender's processors
// were neither idle nor the contender's: other programs had them, or other machines.
func (c *contender) othersBetween(a, b state) float64 {
	ours := map[int]time.Duration{}
	ours[c.cores[1]] += b.back - a.back
	if _, one := c.back.(alone); !one {
		ours[c.cores[0]] += b.front - a.front
	}
	took, most := b.at.Sub(a.at), time.Duration(0)
	for core, own := range ours {
		most = max(most, took-own-(b.idle[core]-a.idle[core]))
	}
	return float64(most) / float64(took)
}

// comparison runs rows.
type comparison struct {
	o *options
	// open starts the back-ends of a row and tells which ones could not be: the
	// rest is compared.
	open     func(ctx context.Context, r row) (list []*contender, failed map[string]error)
	progress io.Writer
	report   *report
}

// run measures each row as often as there are launches. The launches of a row are
// far apart, so that a slow phase of the machine falls on all rows.
func (c *comparison) run(ctx context.Context, rows []row) error {
	for _, r := range rows {
		c.report.Rows = append(c.report.Rows, newRowResult(r))
	}
	for l := range c.o.Launches {
		for i, r := range rows {
			fmt.Fprintf(c.progress, "launch %d of %d: %s\n", l+1, c.o.Launches, r)
			if err := c.launch(ctx, l, r, c.report.Rows[i]); err != nil {
				return fmt.Errorf("%s: %w", r, err)
			}
		}
	}
	return nil
}

// launch measures a row's back-ends in turns. A back-end that fails is out for the
// rest of the launch; only an interruption is an error.
func (c *comparison) launch(ctx context.Context, number int, r row, to *rowResult) (err error) {
	ns, err := distance([2]int(c.o.Cores), distanceBlocks)
	if err != nil {
		return err
	}
	to.Distances = append(to.Distances, ns)
	list, failed := c.open(ctx, r)
	defer func() {
		for _, b := range list {
			if cerr := b.Close(); cerr != nil && ctx.Err() == nil {
				c.report.fail(r, b.name, cerr)
			}
		}
	}()
	for name, err := range failed {
		c.report.fail(r, name, err)
	}
	out := map[*contender]bool{}
	for n := range c.o.Windows {
		for i := range list {
			// Nobody is always the one that comes after a certain other one.
			b := list[(i+n)%len(list)]
			if out[b] {
				continue
			}
			w, others, err := c.quietly(ctx, b)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case err != nil:
				c.report.fail(r, b.name, err)
				out[b] = true
			default:
				to.add(b.name, sample{turn{number, n}, w, others})
			}
		}
	}
	return nil
}

// distanceBlocks make some ten milliseconds.
const distanceBlocks = 200

// disturbance is the share of a window that other programs may have had; half as
// much can be an error of the measurement, for which see [peer.Idle].
const disturbance = 0.1

// quietly measures until other programs have kept away, or for a while.
func (c *comparison) quietly(ctx context.Context, b *contender) (w peer.Window, others float64, err error) {
	for range c.o.Tries {
		w, others, err = b.window(ctx, c.o.WarmUp, c.o.Duration)
		if err != nil || others <= disturbance {
			break
		}
	}
	return w, others, err
}
