package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	// bootTimeout bounds the start of a guest.
	bootTimeout = 2 * time.Minute
	// setTimeout bounds what is done between loads.
	setTimeout = 90 * time.Second
	// slack is by how much a load may take longer than it should.
	slack = 30 * time.Second
	// begun is how many packets tell that a load has begun.
	begun = 20
	// guestsPerLane bounds how often a guest that has died is started again.
	guestsPerLane = 5
)

// bench measures one lane.
type bench struct {
	lane     string
	rounds   int
	seconds  float64
	all      []workload
	variants []variant
	// settle is for how long a load runs before its counters are read.
	settle   time.Duration
	progress io.Writer
	// versions are of what is used, by name; the lane's own are added.
	versions map[string]string
	// start starts a guest.
	start func(ctx context.Context) (site, error)
	// save is called after each round with what there is so far.
	save func(*laneReport) error

	site    site
	servers map[string]bool
	ends    []func(context.Context)
	// speed is requests per second, for programs that count requests.
	speed map[string]float64
}

// guestServer has a server in the guest, which runs until the site ends.
func (b *bench) guestServer(ctx context.Context, port int, name string, args ...string) error {
	return b.server(ctx, "guest", port, b.site.StartGuest, waitGuestPort, name, args...)
}

// hostServer has one on the host side.
func (b *bench) hostServer(ctx context.Context, port int, name string, args ...string) error {
	return b.server(ctx, "host", port, b.site.StartHost, waitHostPort, name, args...)
}

func (b *bench) server(
	ctx context.Context, side string, port int,
	start func(ctx context.Context, name string, args ...string) (func(), error),
	wait func(context.Context, site, int) error,
	name string, args ...string,
) error {
	if b.running(side, port) {
		return nil
	}
	// It outlives the step that needs it first.
	stop, err := start(context.WithoutCancel(ctx), name, args...)
	if err != nil {
		return err
	}
	if err := wait(ctx, b.site, port); err != nil {
		stop()
		return err
	}
	b.atEnd(func(context.Context) { stop() })
	b.servers[side+fmt.Sprint(port)] = true
	return nil
}

func (b *bench) running(side string, port int) bool { return b.servers[side+fmt.Sprint(port)] }

// atEnd does something before the site ends, last things first.
func (b *bench) atEnd(f func(context.Context)) { b.ends = append(b.ends, f) }

// open starts the guest.
func (b *bench) open(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, errors.New("no guest in time"))
	defer cancel()
	b.servers, b.speed, b.ends = map[string]bool{}, map[string]float64{}, nil
	b.site, err = b.start(ctx)
	if err != nil {
		b.site = nil // and not a nil of the lane's type
	}
	return err
}

func (b *bench) close(ctx context.Context) {
	if b.site == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), slack)
	defer cancel()
	for i := len(b.ends) - 1; i >= 0; i-- {
		b.ends[i](ctx)
	}
	b.site.Close()
	b.site = nil
}

// run measures everything. The report is what there is, also with an error.
func (b *bench) run(ctx context.Context, r *laneReport) error {
	defer b.close(ctx)
	if err := b.open(ctx); err != nil {
		return fmt.Errorf("lane %s: %w", b.lane, err)
	}
	fmt.Fprintf(b.progress, "%s: %d samples, about %v\n", b.lane, b.rounds*len(b.all)*len(b.variants), b.estimate())
	start, guests := time.Now(), 1
	if err := b.describe(ctx, r); err != nil {
		return fmt.Errorf("lane %s: %w", b.lane, err)
	}
	for round := range b.rounds {
		for _, w := range b.all {
			prepared := b.prepare(ctx, w)
			for position, i := range orderOf(len(b.variants), round) {
				v := b.variants[i]
				s := sample{Workload: w.name, Variant: v.name, Round: round, Position: position}
				err := prepared
				if err == nil {
					err = b.sample(ctx, w, v, &s)
				}
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if err != nil {
					s.Error = err.Error()
				}
				r.Samples = append(r.Samples, s)
				b.say(w, s)
			}
			if err := b.revive(ctx, &guests); err != nil {
				return err
			}
		}
		if err := b.save(r); err != nil {
			return err
		}
		took := time.Since(start)
		fmt.Fprintf(b.progress, "%s: %d of %d rounds in %v, about %v to go\n", b.lane, round+1, b.rounds,
			took.Round(time.Second), (took / time.Duration(round+1) * time.Duration(b.rounds-round-1)).Round(time.Second))
	}
	return nil
}

// estimate is about how long all samples take: most programs take whole seconds
// only.
func (b *bench) estimate() time.Duration {
	const around = 300 * time.Millisecond // the setting and the counters
	round := time.Duration(0)
	for _, w := range b.all {
		length := time.Duration(wholeSeconds(b.settle.Seconds()+b.seconds)) * time.Second
		round += (w.idle + length + around) * time.Duration(len(b.variants))
	}
	return (round * time.Duration(b.rounds)).Round(time.Minute)
}

// revive starts a guest in the place of one that does not answer.
func (b *bench) revive(ctx context.Context, guests *int) error {
	short, cancel := context.WithTimeout(ctx, slack)
	_, err := b.site.Interrupts(short)
	cancel()
	if err == nil || ctx.Err() != nil {
		return context.Cause(ctx)
	}
	fmt.Fprintf(b.progress, "%s: the guest does not answer, another one is started: %v\n", b.lane, err)
	if *guests++; *guests > guestsPerLane {
		return fmt.Errorf("lane %s: %d guests stopped answering", b.lane, guestsPerLane)
	}
	b.close(ctx)
	return b.open(ctx)
}

// prepare makes everything ready for a workload, without moderation.
func (b *bench) prepare(ctx context.Context, w workload) error {
	ctx, cancel := context.WithTimeoutCause(ctx, setTimeout, errors.New("the workload was not ready in time"))
	defer cancel()
	err := errors.Join(b.site.Configure(ctx, w.guest), b.set(ctx, b.variants[0]))
	if err == nil && w.prepare != nil {
		err = w.prepare(ctx, b)
	}
	if err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	return nil
}

// set puts a variant in force.
func (b *bench) set(ctx context.Context, v variant) error {
	return errors.Join(b.site.SetEngines(ctx, v.engine, v.engine), b.site.GuestAdaptive(ctx, v.guest))
}

// sample runs a load under a variant, and reads the counters while it runs.
func (b *bench) sample(ctx context.Context, w workload, v variant, s *sample) error {
	length := b.settle.Seconds() + b.seconds
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(length*float64(time.Second))+slack, errors.New("the load has no end"))
	defer cancel()
	if err := b.set(ctx, v); err != nil {
		return err
	}
	interrupts, err := b.site.Interrupts(ctx)
	if err != nil {
		return err
	}
	before, err := b.read(ctx)
	if err != nil {
		return err
	}
	var o outcome
	done := make(chan error, 1)
	go func() (err error) {
		defer func() { done <- err }()
		o, err = w.run(ctx, b, load{seconds: length, settle: b.settle, variant: v.name})
		return err
	}()
	first, last, err := b.watch(ctx, before, done)
	// Whatever happened, the load must be over before the next one.
	err = errors.Join(err, <-done)
	if err != nil {
		return err
	}
	after, err := b.read(ctx)
	if err != nil {
		return err
	}
	now, err := b.site.Interrupts(ctx)
	if err != nil {
		return err
	}
	s.Seconds = last.at.Sub(first.at).Seconds()
	s.RX, s.TX = last.since(first, "rx"), last.since(first, "tx")
	s.CPU = (last.cpu - first.cpu).Seconds() / s.Seconds
	// Reading the guest's counters disturbs a load, so they are read around it. How
	// many interrupts come of a notification is the same for all of that time.
	if n := calls(after.device) - calls(before.device); n > 0 {
		s.Interrupts = float64(now-interrupts) / float64(n) * (s.RX.Calls + s.TX.Calls)
	}
	s.Rate, s.Unit, s.Latency, s.Extra = o.rate, o.unit, o.latency, o.extra
	if s.Rate == 0 {
		s.Rate = s.flow(w.direction).Packets
	}
	if s.Rate == 0 {
		return errors.New("no packets")
	}
	return nil
}

// watch reads the counters of a load that has been started: when it has begun and
// settled, and after the time for a sample. It returns early, with the load's
// error put back, if that ends first.
func (b *bench) watch(ctx context.Context, before reading, done chan error) (first, last reading, err error) {
	const poll = 5 * time.Millisecond
	for first = before; packets(first.device)-packets(before.device) < begun; {
		ended, err := b.wait(ctx, poll, done)
		if err != nil {
			return first, last, err
		}
		if ended {
			return first, last, errors.New("the load moved no packets")
		}
		if first, err = b.read(ctx); err != nil {
			return first, last, err
		}
	}
	if _, err := b.wait(ctx, b.settle, done); err != nil {
		return first, last, err
	}
	if first, err = b.read(ctx); err != nil {
		return first, last, err
	}
	length := time.Duration(b.seconds * float64(time.Second))
	if _, err := b.wait(ctx, length, done); err != nil {
		return first, last, err
	}
	if last, err = b.read(ctx); err != nil {
		return first, last, err
	}
	if got := last.at.Sub(first.at); got < length/2 {
		return first, last, fmt.Errorf("the load ended %v after it had settled, %v were to be measured", got, length)
	}
	return first, last, nil
}

// wait waits for a time or for the end of a load, whose result stays in done.
func (b *bench) wait(ctx context.Context, d time.Duration, done chan error) (ended bool, err error) {
	select {
	case err := <-done:
		done <- err
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-time.After(d):
		return false, nil
	}
}

func (b *bench) read(ctx context.Context) (r reading, err error) {
	if r.device, err = b.site.Device(ctx); err != nil {
		return r, err
	}
	r.at = time.Now()
	r.cpu, err = b.site.BackendCPU()
	return r, err
}

// say prints a sample.
func (b *bench) say(w workload, s sample) {
	if s.Error != "" {
		fmt.Fprintf(b.progress, "%s %d/%d %-20s %-16s FAILED: %s\n", b.lane, s.Round+1, b.rounds, s.Workload, s.Variant, s.Error)
		return
	}
	text := ""
	if s.Latency != nil {
		text = fmt.Sprintf(", %.0f us (p99 %.0f)", s.Latency.Avg, s.Latency.P99)
	}
	fmt.Fprintf(b.progress, "%s %d/%d %-20s %-16s %8.0f %s%s, %.3f notifications/packet, %.0f/s, %.0f interrupts/s, cpu %.2f\n",
		b.lane, s.Round+1, b.rounds, s.Workload, s.Variant, s.Rate, s.Unit, text,
		s.flow(w.direction).CallsPerPacket, s.RX.Calls+s.TX.Calls, s.Interrupts, s.CPU)
}
