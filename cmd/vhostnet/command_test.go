package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vhostnet/vhostnet/mgmt"
)

// "Other options and arguments should be ignored": also wrong ones.
func TestPrintCapabilities(t *testing.T) {
	for _, args := range [][]string{
		{"--print-capabilities"},
		{"serve", "--print-capabilities"},
		{"--socket-path=/nowhere/s", "--fd=3", "--no-such-option", "--print-capabilities", "nonsense"},
	} {
		code, out, errs := inProcess(t, args...)
		var got struct {
			Type     string
			Features []string
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%v: %v in %q", args, err, out)
		}
		if code != exitOK || errs != "" || got.Type != "net" || got.Features == nil {
			t.Errorf("%v: exit code %d, %q, %q", args, code, out, errs)
		}
	}
	// And as the process that management software starts.
	out, err := prepare(t, nil, "--print-capabilities").Output()
	if err != nil || !json.Valid(out) {
		t.Errorf("%q, %v", out, err)
	}
}

func TestHelp(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--help"}, []string{"serve", "demo", "tap", "features", "version"}},
		{[]string{"serve", "--help"}, []string{
			"--socket-path=PATH", "--fd=N", "--client", "--port=KIND:ARGS", "--queue-pairs=N", "--queue-size=N", "--mac=ADDRESS",
			"--mtu=BYTES", "--features", "--rx-coalesce=USECS/FRAMES", "--tx-coalesce", "--coalesce-strict", "--rx-moderation=ENGINE", "--trace=FILE", "--api=ADDRESS",
			"--log-level", "--log-format", "--print-capabilities", "--print-features", "1 (default) to 127", "microseconds", "SIGTERM", "Exit code", "qemu-system-x86_64",
		}},
		{[]string{"tap", "create", "--help"}, []string{"<name>", "--queues=N", "--owner=USER", "--group=GROUP", "CAP_NET_ADMIN"}},
		{[]string{"tap", "delete", "--help"}, []string{"<name>"}},
		{[]string{"demo", "--help"}, []string{"--seconds=N", "--json"}},
	} {
		code, out, errs := inProcess(t, c.args...)
		if code != exitOK || errs != "" {
			t.Errorf("%v: exit code %d, %q", c.args, code, errs)
		}
		for _, w := range c.want {
			if !strings.Contains(strings.Join(strings.Fields(out), " "), w) {
				t.Errorf("%v: no %q in\n%s", c.args, w, out)
			}
		}
	}
}

// What is wrong comes as one line that says what to do, with the exit code that
// tells a wrong command line from a failure.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := "--socket-path=" + filepath.Join(dir, "s")
	for _, c := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"nothing", nil, exitUsage, []string{"--socket-path", "--fd", "--help"}},
		{"unknown flag", []string{s, "--speed=9"}, exitUsage, []string{"--speed"}},
		{"unknown command", []string{"server"}, exitUsage, []string{"server"}},
		{"client without path", []string{"--fd=3", "--client"}, exitUsage, []string{"--client", "--socket-path"}},
		{"negative fd", []string{"--fd=-1"}, exitUsage, []string{"--fd"}},
		{"port kind", []string{s, "--port=bridge:br0"}, exitUsage, []string{"tap:NAME"}},
		{"port empty", []string{s, "--port=tap:"}, exitUsage, []string{"tap:"}},
		{"tap without name", []string{s, "--port=tap"}, exitUsage, []string{"tap:NAME"}},
		{"port argument", []string{s, "--port=null:x"}, exitUsage, []string{"null"}},
		{"source size", []string{s, "--port=source:1"}, exitUsage, []string{"source"}},
		{"tap name", []string{s, "--port=tap:0123456789abcdef"}, exitFailed, []string{"0123456789abcdef", "15"}},
		{"threads", []string{s, "--threads=1025"}, exitUsage, []string{"1 to 1024"}},
		{"negative threads", []string{s, "--threads=-1"}, exitUsage, []string{"1 to 1024"}},
		{"processors without threads", []string{s, "--thread-cpus=0"}, exitUsage, []string{"--threads"}},
		{"negative processor", []string{s, "--threads=1", "--thread-cpus=-1"}, exitUsage, []string{"processor -1"}},
		{"no such processor", []string{s, "--threads=1", "--thread-cpus=1000000"}, exitFailed, []string{"processor 1000000"}},
		{"pairs", []string{s, "--queue-pairs=128"}, exitUsage, []string{"1 to 127"}},
		{"no pairs", []string{s, "--queue-pairs=0"}, exitUsage, []string{"1 to 127"}},
		{"queue size", []string{s, "--queue-size=100"}, exitUsage, []string{"power of two"}},
		{"mtu", []string{s, "--mtu=67"}, exitUsage, []string{"68 to 65535"}},
		{"speed", []string{s, "--link-speed=-1"}, exitUsage, []string{"1 to 2147483647"}},
		{"feature", []string{s, "--features=+rsc_ext"}, exitUsage, []string{"VIRTIO_NET_F_RSC_EXT"}},
		{"socket directory", []string{"--socket-path=" + filepath.Join(dir, "none", "s")}, exitFailed, []string{"directory"}},
		{"socket is a file", []string{"--socket-path=" + file}, exitFailed, []string{file, "not a socket"}},
		{"socket path length", []string{"--socket-path=" + filepath.Join(dir, strings.Repeat("x", 108))}, exitUsage, []string{"1 to 107"}},
		{"socket path empty", []string{"--socket-path="}, exitUsage, []string{"1 to 107"}},
		{"API is a file", []string{s, "--api=unix:" + file}, exitFailed, []string{file, "not a socket"}},
		{"API vsock", []string{s, "--api=vsock:4294967280:9"}, exitFailed, []string{"vsock:4294967280:9", "modprobe"}},
		{"API twice", []string{s, "--api=unix:" + dir + "/a", "--api=unix:" + dir + "/a"}, exitFailed, []string{dir + "/a", "another"}},
		{"trace of nothing", []string{s, "--trace=" + dir + "/t"}, exitUsage, []string{"--trace", "adaptive"}},
		{"trace of fixed limits", []string{s, "--trace=" + dir + "/t", "--rx-coalesce=8/8", "--tx-moderation=off"}, exitUsage, []string{"--trace"}},
		{"trace into no directory", []string{s, "--trace=" + dir + "/none/t", "--rx-moderation=adaptive"}, exitFailed, []string{"none/t", "directory"}},
		{"owner", []string{"tap", "create", "vnx", "--owner=no such user"}, exitUsage, []string{"--owner", "no such user"}},
		{"group", []string{"tap", "create", "vnx", "--group=no such group"}, exitUsage, []string{"--group"}},
		{"tap queues", []string{"tap", "create", "vnx", "--queues=257"}, exitUsage, []string{"256"}},
		{"tap missing", []string{"tap", "delete", "vn-none"}, exitFailed, []string{"vn-none", "no such interface"}},
		{"demo seconds", []string{"demo", "--seconds=0"}, exitUsage, []string{"1 to 3600"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, errs := inProcess(t, append(slices.Clone(c.args), quiet(c.args)...)...)
			if code != c.code || out != "" {
				t.Errorf("exit code %d, want %d; %q", code, c.code, out)
			}
			lines := strings.Split(strings.TrimSpace(errs), "\n")
			last := len(lines) - 1
			if c.code == exitUsage && last > 0 && strings.HasPrefix(lines[last], "See ") {
				last--
			}
			if last != 0 || !strings.HasPrefix(lines[0], "vhostnet: ") {
				t.Errorf("not one line: %q", errs)
			}
			for _, w := range c.want {
				if !strings.Contains(errs, w) {
					t.Errorf("no %q in %q", w, errs)
				}
			}
			left, err := os.ReadDir(dir)
			if err != nil || len(left) != 1 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// quiet keeps the log of serve out of the way.
func quiet(args []string) []string {
	if len(args) > 0 && strings.HasPrefix(args[0], "--") {
		return []string{"--log-level=error"}
	}
	return nil
}

// An ordinary user who may not make a TAP is told what is missing.
func TestTAPWithoutPermission(t *testing.T) {
	cmd := prepare(t, nil, "--socket-path=/nonexistent/s", "--port=tap:vn-none")
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		// The test binary's folder is root's.
		exe := readable(t, cmd.Path)
		cmd.Path, cmd.Args[0] = exe, exe
	}
	p := launch(t, cmd)
	if code := p.code(); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	if !strings.Contains(p.log(), "vn-none") || !strings.Contains(p.log(), "CAP_NET_ADMIN") && !strings.Contains(p.log(), "/dev/net/tun") {
		t.Errorf("no hint: %s", p.log())
	}
}

// readable copies a program to where every user can start it.
func readable(t *testing.T, path string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vhostnet-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(dir, "vhostnet")
	if err := os.WriteFile(exe, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return exe
}

func TestVersion(t *testing.T) {
	code, out, _ := inProcess(t, "version")
	if code != exitOK || !strings.HasPrefix(out, "vhostnet ") {
		t.Errorf("exit code %d, %q", code, out)
	}
	code, out, _ = inProcess(t, "version", "--json")
	var v mgmt.VersionInfo
	if err := json.Unmarshal([]byte(out), &v); code != exitOK || err != nil || v != version() {
		t.Errorf("exit code %d, %q, %v", code, out, err)
	}
	got := fromBuildInfo(&debug.BuildInfo{
		GoVersion: "go1.26", Main: debug.Module{Version: "(devel)"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}, {Key: "vcs.time", Value: "t"}},
	})
	want := mgmt.VersionInfo{Version: "devel", Revision: "abc", Time: "t", Modified: true, Go: "go1.26"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got := versionLine(want); got != "vhostnet devel abc+modified go1.26" {
		t.Error(got)
	}
}

func TestFeatures(t *testing.T) {
	code, out, errs := inProcess(t, "features")
	if code != exitOK || errs != "" {
		t.Fatalf("exit code %d, %q", code, errs)
	}
	lines := strings.Fields(out)
	for _, want := range []string{
		"VIRTIO_NET_F_NOTF_COAL", "VIRTIO_NET_F_VQ_NOTF_COAL", "VIRTIO_NET_F_MRG_RXBUF",
		"VIRTIO_NET_F_MQ", "VIRTIO_NET_F_MAC", "VIRTIO_NET_F_MTU",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no %s in %s", want, out)
		}
	}
	code, out, _ = inProcess(t, "features", "--json")
	var names []string
	if err := json.Unmarshal([]byte(out), &names); code != exitOK || err != nil || !slices.Equal(names, lines) {
		t.Errorf("exit code %d, %q, %v", code, out, err)
	}
	// What it prints, --features takes.
	for _, name := range names {
		var e featureEdit
		if err := e.parse("-" + name); err != nil {
			t.Error(err)
		}
	}
}

// --print-features has a line for each bit with a name, and says what the flags
// make of it.
func TestPrintFeatures(t *testing.T) {
	table := func(args ...string) map[string][]string {
		code, out, errs := inProcess(t, append([]string{"serve", "--print-features"}, args...)...)
		if code != exitOK || errs != "" {
			t.Fatalf("%v: exit code %d, %q", args, code, errs)
		}
		rows := map[string][]string{}
		for line := range strings.Lines(out) {
			f := strings.Fields(strings.ReplaceAll(line, "on request", "on-request"))
			rows[f[1]] = f
		}
		return rows
	}
	plain, edited := table(), table("--queue-pairs=2", "--mtu=9000", "--features=-ctrl_vq,-indirect_desc")
	for name, want := range map[string][2]string{
		"VIRTIO_F_VERSION_1":     {"yes", "yes"},
		"VIRTIO_F_INDIRECT_DESC": {"yes", "no"},
		"VIRTIO_NET_F_CTRL_VQ":   {"yes", "no"},
		"VIRTIO_NET_F_NOTF_COAL": {"yes", "no"}, // goes with CTRL_VQ
		"VIRTIO_NET_F_MQ":        {"no", "no"},
		"VIRTIO_NET_F_MTU":       {"no", "yes"},
		"VIRTIO_F_RING_RESET":    {"no", "no"},
	} {
		if plain[name] == nil || edited[name] == nil || plain[name][2] != want[0] || edited[name][2] != want[1] {
			t.Errorf("%s: %v and %v, want %v", name, plain[name], edited[name], want)
		}
	}
	if got := strings.Join(plain["VIRTIO_NET_F_HOST_ECN"], " "); got != "13 VIRTIO_NET_F_HOST_ECN yes VIRTIO_NET_F_HOST_TSO4 or VIRTIO_NET_F_HOST_TSO6" {
		t.Error(got)
	}
	if code, _, errs := inProcess(t, "serve", "--print-features", "--features=+mq,-ctrl_vq", "--queue-pairs=2"); code != exitUsage ||
		!strings.Contains(errs, "VIRTIO_NET_F_MQ needs VIRTIO_NET_F_CTRL_VQ, which is not on offer") {
		t.Errorf("exit code %d, %q", code, errs)
	}
}

func TestLogFormat(t *testing.T) {
	for format, ok := range map[string]func([]byte) bool{
		"json": json.Valid,
		"text": func(b []byte) bool { return strings.HasPrefix(string(b), "time=") },
	} {
		path := socket(t)
		p := spawn(t, "--socket-path", path, "--log-format", format)
		p.await(listening, 1)
		p.end(syscall.SIGTERM)
		for line := range strings.SplitSeq(p.log(), "\n") {
			if !ok([]byte(line)) {
				t.Errorf("--log-format %s: %q", format, line)
			}
		}
	}
}

// A command that does not end is given up in time, with an error.
func TestGivesUpWaiting(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe() // a standard output that is never read
	defer func() { _ = r.Close() }()
	var errs strings.Builder
	done := make(chan int, 1)
	go func() { done <- run(ctx, []string{"version"}, w, &errs) }()
	cancel()
	if code := <-done; code != exitFailed || !strings.Contains(errs.String(), "not finished") {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
}
