package main

import (
	"errors"
	"fmt"

	"github.com/vhostnet/vhostnet/netdev"
)

// threadFlags say who serves the queue pairs of the process.
type threadFlags struct {
	Threads    int   `default:"0" placeholder:"N" group:"threads" help:"Threads that serve the queue pairs of all devices, 1 to 1024. A queue pair moves to another one when its own has more to do. 0 (default): a thread for each queue pair."`
	ThreadCPUs []int `name:"thread-cpus" placeholder:"CPU,..." group:"threads" help:"Processors that the threads stay on, one after the other; without it the kernel places them. It needs --threads."`
}

// pool starts the threads; nil if queue pairs have their own.
func (f *threadFlags) pool() (*netdev.Pool, error) {
	if f.Threads == 0 {
		if len(f.ThreadCPUs) > 0 {
			return nil, usageError{errors.New("--thread-cpus needs --threads")}
		}
		return nil, nil
	}
	p, err := netdev.NewPool(f.Threads, f.ThreadCPUs)
	if errors.Is(err, netdev.ErrConfig) {
		err = usageError{fmt.Errorf("--threads: %w", err)}
	}
	return p, err
}
