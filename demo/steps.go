package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/vhostnet/vhostnet/driver"
)

// setting is what a step sends over the control queue.
type setting struct {
	name           string
	rx, tx         limits
	perQueue       bool // rx and tx are for queue pair 0 only
	withoutControl bool // send nothing: show what a driver finds
}

type limits struct{ usecs, frames uint32 }

// steps are the settings to show. The last one is given to one queue pair only
// and gives a row for each pair.
var steps = []setting{
	{name: "off", withoutControl: true},
	{name: "rx 64us/64", rx: limits{64, 64}},
	{name: "rx+tx 64us/64", rx: limits{64, 64}, tx: limits{64, 64}},
	{name: "rx+tx 500us/64", rx: limits{500, 64}, tx: limits{500, 64}},
	{name: "per queue", rx: limits{500, 64}, tx: limits{500, 64}, perQueue: true},
}

// apply sends the setting's control commands.
func (s *setting) apply(d *driver.Driver) error {
	if s.withoutControl {
		return nil
	}
	rx, tx := s.rx, s.tx
	if s.perQueue {
		// All queues notify of every packet again, but for the two of pair 0.
		rx, tx = limits{}, limits{}
	}
	if err := d.SetRXCoalesce(rx.usecs, rx.frames); err != nil {
		return err
	}
	if err := d.SetTXCoalesce(tx.usecs, tx.frames); err != nil {
		return err
	}
	if !s.perQueue {
		return nil
	}
	if err := d.SetVQCoalesce(0, s.rx.usecs, s.rx.frames); err != nil {
		return err
	}
	return d.SetVQCoalesce(1, s.tx.usecs, s.tx.frames)
}

// rows returns which queue pairs make up each row of a step.
func (s *setting) rows() [][]int {
	if s.perQueue {
		var rows [][]int
		for i := range pairs {
			rows = append(rows, []int{i})
		}
		return rows
	}
	all := make([]int, pairs)
	for i := range all {
		all[i] = i
	}
	return [][]int{all}
}

// runSteps measures every setting and shows it.
func runSteps(ctx context.Context, d *driver.Driver, c *Config) (*Result, error) {
	t := newTable(c.Out, c.Live)
	t.head(d)
	load := newLoad(d)
	total := time.Duration(c.Seconds * float64(time.Second))
	// What it costs to touch memory for the first time is not part of a step.
	warmUp := min(total/20, sliceTime)
	if err := load.warmUp(warmUp); err != nil {
		return nil, err
	}
	each := (total - warmUp) / time.Duration(len(steps))
	r := new(Result)
	for i := range steps {
		done, err := runStep(ctx, d, load, t, &steps[i], each)
		if err != nil {
			return nil, fmt.Errorf("demo: step %q: %w", steps[i].name, err)
		}
		r.Steps = append(r.Steps, done...)
	}
	t.foot(r.Steps)
	return r, nil
}

// runStep measures one setting for the given time, load and single frames in
// turn.
func runStep(ctx context.Context, d *driver.Driver, load *load, t *table, s *setting, each time.Duration) ([]Step, error) {
	if err := s.apply(d); err != nil {
		return nil, err
	}
	rows := make([]row, 0, pairs)
	for _, members := range s.rows() {
		r, err := newRow(d, s, members)
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	load.reset()
	for end := time.Now().Add(each); ; {
		left := time.Until(end)
		if left <= 0 {
			break
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		slice := min(sliceTime, left)
		if err := load.run(slice * 2 / 3); err != nil {
			return nil, err
		}
		if err := load.ping(slice / 3); err != nil {
			return nil, err
		}
		t.update(rows, load)
	}
	t.done(rows, load)
	done := make([]Step, len(rows))
	for i := range rows {
		done[i] = rows[i].step(load)
	}
	return done, nil
}

// row is one line of the table: a step, or one queue pair in it.
type row struct {
	Step
	members []int
}

// newRow asks the device for the limits, so that the table shows what it has
// understood, and checks them.
func newRow(d *driver.Driver, s *setting, members []int) (row, error) {
	r := row{Step: Step{Name: s.name}, members: members}
	if s.perQueue {
		r.Name = fmt.Sprintf("%s: %d", s.name, members[0])
	}
	want := [2]limits{s.rx, s.tx}
	if s.perQueue && members[0] != 0 {
		want = [2]limits{}
	}
	var got [2]limits
	for i := range got {
		vq := uint16(2*members[0] + i)
		var err error
		if got[i].usecs, got[i].frames, err = d.VQCoalesce(vq); err != nil {
			return row{}, err
		}
		if got[i] != want[i] {
			return row{}, fmt.Errorf("virtqueue %d reports %v, want %v", vq, got[i], want[i])
		}
	}
	r.RXUsecs, r.RXFrames = got[0].usecs, got[0].frames
	r.TXUsecs, r.TXFrames = got[1].usecs, got[1].frames
	return r, nil
}

// step fills in what was measured so far.
func (r *row) step(l *load) Step {
	s := r.Step
	h := newHistogram()
	for _, i := range r.members {
		f := &l.flows[i]
		s.Packets += f.packets
		s.Notifications += f.notifications
		h.Merge(f.rtt)
	}
	if s.Packets > 0 {
		s.NotificationsPerPacket = float64(s.Notifications) / float64(s.Packets)
	}
	if h.TotalCount() > 0 {
		s.RTTP50 = float64(h.ValueAtQuantile(50)) / 1e3
		s.RTTP99 = float64(h.ValueAtQuantile(99)) / 1e3
	}
	return s
}
