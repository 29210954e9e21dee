package linkwatch

import (
	"errors"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Watcher is a netlink socket that hears of the links of a network namespace.
type Watcher struct{ socket *nl.NetlinkSocket }

// Subscribe listens in the calling thread's network namespace. It needs no
// privilege. The error is that of a system call.
func Subscribe() (*Watcher, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, err
	}
	return &Watcher{s}, nil
}

// Watch calls changed, from a goroutine of its own, whenever the link of that index may
// have changed, until Close. One that is moved to another namespace says nothing any
// more.
func (w *Watcher) Watch(index int, changed func()) {
	go func() {
		for {
			msgs, _, err := w.socket.Receive()
			switch {
			case errors.Is(err, unix.ENOBUFS):
				changed() // some were lost
				continue
			case err != nil && !errors.Is(err, os.ErrClosed):
				changed() // the last that can be said
				return
			case err != nil:
				return
			}
			for _, m := range msgs {
				if len(m.Data) >= unix.SizeofIfInfomsg && int(nl.DeserializeIfInfomsg(m.Data).Index) == index {
					changed()
					break
				}
			}
		}
	}()
}

// Close ends it. changed may be running, and be called once more. Closing no watcher
// does nothing.
func (w *Watcher) Close() {
	if w != nil {
		w.socket.Close()
	}
}
