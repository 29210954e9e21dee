package vhostuser

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// channelTimeout bounds how long a front-end that does not read its channel can
// hold the back-end up.
const channelTimeout = 100 * time.Millisecond

// BackendChannel carries requests of the back-end to the front-end
// (SET_BACKEND_REQ_FD). No reply is asked for, so none is waited for. Its
// methods may be called from any goroutine.
type BackendChannel struct {
	mu sync.Mutex
	c  *net.UnixConn // guarded by mu; nil once closed
}

func newBackendChannel(fd int) (*BackendChannel, error) {
	f := os.NewFile(uintptr(fd), "backend-channel")
	defer func() { _ = f.Close() }()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("back-end channel: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, errors.New("back-end channel: not a Unix socket")
	}
	return &BackendChannel{c: u}, nil
}

// ConfigChanged tells the front-end to read the configuration space again
// (CONFIG_CHANGE_MSG). It returns an error if the front-end does not take the
// message within a tenth of a second.
func (b *BackendChannel) ConfigChanged() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		return net.ErrClosed
	}
	_ = b.c.SetWriteDeadline(time.Now().Add(channelTimeout))
	if err := writeMessage(b.c, Header{BackendReqConfigChange, FlagVersion, 0}, nil, nil); err != nil {
		return fmt.Errorf("vhostuser: configuration change: %w", err)
	}
	return nil
}

func (b *BackendChannel) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil {
		_ = b.c.Close()
		b.c = nil
	}
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
