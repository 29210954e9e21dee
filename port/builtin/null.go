package builtin

import "github.com/vhostnet/vhostnet/port"

type null struct{ base }

var _ port.Port = (*null)(nil)

// Null returns a port that takes every frame and never has one. Any number of
// goroutines may use its queues.
func Null(queues int) (port.Port, error) {
	b, err := newBase("null", "null", queues, func(int) port.PortQueue { return nullQueue{} })
	if err != nil {
		return nil, err
	}
	return &null{b}, nil
}

type nullQueue struct{ sink }

var _ port.BurstQueue = nullQueue{}

func (nullQueue) Recv([][]byte) (int, error) { return 0, port.ErrWouldBlock }

func (nullQueue) RecvBurst([][]byte, int, []uint32) (int, bool) { return 0, false }
