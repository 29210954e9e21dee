package sim

import (
	"context"
	"runtime"
	"sync"

	"github.com/vhostnet/vhostnet/coalesce"
)

// DefaultEngines are the specs that tables compare: each engine, and fixed limits
// of which the larger ones trade more delay for fewer notifications.
func DefaultEngines() []string {
	return []string{
		"off", "net-dim", "rdma-dim", "adaptive",
		"fixed:8/8", "fixed:32/32", "fixed:64/64", "fixed:128/64", "fixed:256/64",
	}
}

// Suite runs each engine under each workload, with the rest of c as it is, and
// calls emit with the results in order of workload, then engine. They are the same
// however many processors there are. It returns the error of ctx or of emit, with
// which it stops early.
func Suite(ctx context.Context, engines []coalesce.EngineSpec, workloads []Workload, c Config, emit func(Result) error) error {
	ctx, cancel := context.WithCancel(ctx)
	type job struct {
		config Config
		done   chan struct{}
		result Result
	}
	// "off" comes first for each workload: the others are compared with it.
	specs := append([]coalesce.EngineSpec{{}}, engines...)
	jobs := make([]*job, 0, len(workloads)*len(specs))
	for _, w := range workloads {
		for _, s := range specs {
			j := &job{config: c, done: make(chan struct{})}
			j.config.Engine, j.config.Workload = s, w
			jobs = append(jobs, j)
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	todo := make(chan *job)
	wg.Go(func() {
		defer close(todo)
		for _, j := range jobs {
			select {
			case todo <- j:
			case <-ctx.Done():
				return
			}
		}
	})
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for j := range todo {
				if ctx.Err() != nil {
					return
				}
				j.result = Run(j.config)
				close(j.done)
			}
		})
	}
	var base Result
	for i, j := range jobs {
		select {
		case <-j.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if i%len(specs) == 0 {
			base = j.result
			continue
		}
		r := j.result
		if base.PacketsPerSecond > 0 {
			r.ThroughputRatio = r.PacketsPerSecond / base.PacketsPerSecond
		}
		if err := emit(r); err != nil {
			return err
		}
	}
	return ctx.Err()
}
