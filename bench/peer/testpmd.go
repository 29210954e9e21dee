package peer

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Traffic is what goes through a virtqueue.
type Traffic struct {
	// Mode is the back-end's part: "sink", "source" or "echo".
	Mode string
	// Size is the length of a frame in bytes, without header and checksum.
	Size int
}

const (
	// queueSize is the size of the virtqueues of all front-ends.
	queueSize = 256
	// EchoWindow is how many frames go round and round in an echo.
	EchoWindow = queueSize / 2
	// Burst is how many frames a front-end moves at once.
	Burst = 32
	// poolMbufs and memoryMB are what each testpmd takes.
	poolMbufs = 32768
	memoryMB  = 256
)

const testpmdPrompt = "testpmd> "

// dpdk makes command lines of testpmd.
type dpdk struct {
	// command runs testpmd with arguments.
	command func(ctx context.Context, args ...string) *exec.Cmd
	// huge: there are huge pages for it.
	huge bool
}

// testpmd is a running testpmd with one port that matters, number 0.
type testpmd struct{ *console }

// start starts testpmd with virtual devices; its main thread and the one that
// forwards share the core.
func (d dpdk) start(ctx context.Context, name string, at Place, devices, flags []string) (*testpmd, error) {
	c, _, err := startConsole(ctx, name, testpmdPrompt, d.command(ctx, d.args(at.Core, devices, flags)...), at)
	if err != nil {
		return nil, err
	}
	return &testpmd{c}, nil
}

// args are the arguments. With --in-memory nothing is left behind in /dev/hugepages
// or /run; one file a segment keeps the vhost-user memory table short.
func (d dpdk) args(core int, devices, flags []string) []string {
	n := strconv.Itoa(max(core, 0))
	args := []string{
		"--lcores", "0@" + n + ",1@" + n, "--in-memory", "--single-file-segments",
		"-m", strconv.Itoa(memoryMB), "--no-pci", "--no-telemetry", "--log-level", "4",
	}
	if !d.huge {
		args = append(args, "--no-huge")
	}
	for _, v := range devices {
		args = append(args, "--vdev", v)
	}
	args = append(args, "--", "--interactive", "--nb-cores=1", "--total-num-mbufs="+strconv.Itoa(poolMbufs),
		"--burst="+strconv.Itoa(Burst), "--txd="+strconv.Itoa(queueSize), "--rxd="+strconv.Itoa(queueSize))
	return append(args, flags...)
}

// forward is the flag for a forwarding mode.
func forward(mode string, size int) []string {
	return []string{"--forward-mode=" + mode, "--txpkts=" + strconv.Itoa(size)}
}

// refusals are what testpmd answers to a command that it does not carry out.
var refusals = []string{"Bad arguments", "Command not found", "Ambiguous command", "not started", "already started", "Invalid port"}

// tell gives a command and checks that it was carried out.
func (t *testpmd) tell(ctx context.Context, command string) (string, error) {
	s, err := t.do(ctx, command)
	if err != nil {
		return "", err
	}
	for _, r := range refusals {
		if strings.Contains(s, r) {
			return "", fmt.Errorf("peer: %s: %s: %s", t.name, command, strings.TrimSpace(s))
		}
	}
	return s, nil
}

// stats reads the counters of port 0.
func (t *testpmd) stats(ctx context.Context) (PortStats, error) {
	s, err := t.tell(ctx, "show port stats 0")
	if err != nil {
		return PortStats{}, err
	}
	return ParsePortStats(s)
}

// inDir is a socket in a folder.
func inDir(dir, name string) string { return filepath.Join(dir, name+".sock") }
