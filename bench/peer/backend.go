package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

// BackEnd listens on a vhost-user socket. One goroutine uses it.
type BackEnd interface {
	// Socket is where.
	Socket() string
	// PID is its process.
	PID() int
	// Resume comes before a window, Pause after it: between them only may a
	// back-end poll.
	Resume(ctx context.Context) error
	Pause(ctx context.Context) error
	// Close ends the process.
	Close() error
}

// Kit starts the peers. Close it last.
type Kit struct {
	peers *provision.Peers
	dpdk  dpdk
	pages *hugePages
}

// NewKit prepares for peers, tests of testpmd at a time. Where there are no huge
// pages for them, they do without; HugePages tells.
func NewKit(p *provision.Peers, tests int) *Kit {
	k := &Kit{peers: p, pages: reserve(tests * memoryMB)}
	k.dpdk = dpdk{command: p.Testpmd, huge: k.pages != nil}
	return k
}

// HugePages tells whether DPDK has huge pages.
func (k *Kit) HugePages() bool { return k.dpdk.huge }

// Close gives the huge pages back.
func (k *Kit) Close() error { return k.pages.release() }

// netVhost is DPDK's vhost library in testpmd.
type netVhost struct {
	*testpmd
	socket string
}

// netVhostModes are its forwarding modes.
var netVhostModes = map[string]string{"sink": "rxonly", "source": "txonly", "echo": "macswap"}

// NetVhost starts a testpmd with net_vhost. Its socket is in dir.
func (k *Kit) NetVhost(ctx context.Context, dir string, t Traffic, at Place) (BackEnd, error) {
	mode, ok := netVhostModes[t.Mode]
	if !ok {
		return nil, fmt.Errorf("peer: net_vhost: no mode %q", t.Mode)
	}
	return k.netVhost(ctx, inDir(dir, "net_vhost"), at, nil, forward(mode, t.Size))
}

// NetVhostTap starts a testpmd that forwards between net_vhost and net_tap, whose
// interface gets the given name in at's network.
func (k *Kit) NetVhostTap(ctx context.Context, dir, name string, at Place) (BackEnd, error) {
	return k.netVhost(ctx, inDir(dir, "net_tap"), at, []string{"net_tap0,iface=" + name}, []string{"--forward-mode=io"})
}

func (k *Kit) netVhost(ctx context.Context, socket string, at Place, further, flags []string) (BackEnd, error) {
	p, err := k.dpdk.start(ctx, "net_vhost", at, append([]string{"net_vhost0,iface=" + socket + ",queues=1"}, further...), flags)
	if err != nil {
		return nil, err
	}
	return &netVhost{p, socket}, nil
}

func (n *netVhost) Socket() string { return n.socket }

func (n *netVhost) Resume(ctx context.Context) error {
	_, err := n.tell(ctx, "start")
	return err
}

func (n *netVhost) Pause(ctx context.Context) error {
	_, err := n.tell(ctx, "stop")
	return err
}

func (n *netVhost) Close() error { return n.quit("quit") }

// daemon is a back-end that sleeps by itself when it has nothing to do.
type daemon struct {
	*Process
	socket string
	log    *bytes.Buffer // the process's until it has ended
}

// Daemon starts a back-end that listens on socket until it is told to end with
// SIGTERM.
func Daemon(ctx context.Context, name string, cmd *exec.Cmd, socket string, at Place) (BackEnd, error) {
	d := &daemon{socket: socket, log: new(bytes.Buffer)}
	cmd.Stdout, cmd.Stderr = d.log, d.log
	var err error
	if d.Process, err = start(name, cmd, at); err != nil {
		return nil, err
	}
	if err = awaitSocket(ctx, d.Process, socket); err != nil {
		_ = d.stop()
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(d.log.String()))
	}
	return d, nil
}

// awaitSocket waits until a process listens on a path.
func awaitSocket(ctx context.Context, p *Process, socket string) error {
	sockets := fmt.Sprintf("/proc/%d/net/unix", p.PID())
	return poll(ctx, p, "socket", func() bool {
		b, err := os.ReadFile(sockets)
		return err == nil && listens(string(b), socket)
	})
}

// listens tells whether somebody listens on a path. To connect would be to be
// taken for the front-end, and a file is there before anybody listens. table is
// what the kernel's net/unix contains.
func listens(table, path string) bool {
	const acceptsConnections = "00010000"
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) == 8 && f[3] == acceptsConnections && f[7] == path {
			return true
		}
	}
	return false
}

// Passt starts passt, which forwards the guest's packets to sockets of at's
// network.
func (k *Kit) Passt(ctx context.Context, dir string, at Place) (BackEnd, error) {
	socket := inDir(dir, "passt")
	cmd := k.peers.PasstCommand(ctx, "--vhost-user", "--foreground", "--socket", socket, "--quiet",
		"--address", GuestIP, "--netmask", prefixLength, "--gateway", gatewayIP, "--mac-addr", HostMAC, "--ipv4-only")
	return Daemon(ctx, "passt", cmd, socket, at)
}

func (d *daemon) Socket() string { return d.socket }

func (d *daemon) Resume(context.Context) error { return d.ended() }

func (d *daemon) Pause(context.Context) error { return d.ended() }

func (d *daemon) Close() error {
	err := d.ended()
	if serr := d.stop(); err == nil {
		err = serr
	} else {
		err = errors.Join(err, errors.New(strings.TrimSpace(d.log.String())))
	}
	return err
}
